// Kubecheck builds kustomizations as `kubectl kustomize` does, and holds each object against
// Kubernetes' own schemas, without a cluster.
//
//	kubecheck ../kubernetes/workers ../kubernetes/controller     check them
//	kubecheck -print ../kubernetes/workers                       print what it is built to
//
// Kubeconform downloads its schemas from an address of its own. Here they are made of the OpenAPI
// document in the Go module k8s.io/kubernetes, which comes from where all modules come from.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/yannh/kubeconform/pkg/validator"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func main() {
	printed := flag.Bool("print", false, "print the objects and check nothing")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: kubecheck [-print] KUSTOMIZATION...")
		os.Exit(2)
	}
	run := check
	if *printed {
		run = show
	}
	if err := run(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func show(folders []string) error {
	for _, folder := range folders {
		text, err := build(folder)
		if err != nil {
			return err
		}
		fmt.Printf("---\n%s", text)
	}
	return nil
}

func check(folders []string) error {
	schemas, err := os.MkdirTemp("", "kubecheck-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(schemas)
	if err := writeSchemas(schemas); err != nil {
		return err
	}
	judge, err := validator.New(
		[]string{schemas + "/{{.ResourceKind}}{{.KindSuffix}}.json"},
		validator.Opts{Strict: true},
	)
	if err != nil {
		return err
	}
	wrong := 0
	for _, folder := range folders {
		text, err := build(folder)
		if err != nil {
			return err
		}
		results := judge.Validate(folder, io.NopCloser(bytes.NewReader(text)))
		for _, result := range results {
			if result.Status != validator.Valid {
				wrong++
				name := "an object"
				if signature, err := result.Resource.Signature(); err == nil {
					name = signature.Kind + " " + signature.Name
				}
				fmt.Fprintf(os.Stderr, "%s: %s: %v\n", folder, name, result.Err)
			}
		}
		fmt.Printf("%s: %d objects, as Kubernetes %s reads them\n", folder, len(results), kubernetes)
	}
	if wrong > 0 {
		return fmt.Errorf("%d objects are wrong", wrong)
	}
	return nil
}

func build(folder string) ([]byte, error) {
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", folder, err)
	}
	return made.AsYaml()
}
