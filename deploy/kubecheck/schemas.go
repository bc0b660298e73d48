package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// The oldest version that is still maintained: what it knows, newer ones know.
const (
	kubernetes    = "v1.35.4"
	kubernetesSum = "h1:o/8dBC/pHVpYoGV4OAIytAlNPZbdYVTXJHoYvXC4qzM="
)

// Its two kinds, as far as our manifests use them: the module of Temporal's worker controller, which
// has all of them, cannot be had from every proxy. A worker's pod is Kubernetes' own.
//
//go:embed worker-controller.json
var workerController []byte

type object = map[string]any

// writeSchemas writes a file for each kind, which refers to one file with all definitions.
func writeSchemas(folder string) error {
	document, err := openAPI()
	if err != nil {
		return err
	}
	definitions := document["definitions"].(object)
	own := object{}
	if err := json.Unmarshal(workerController, &own); err != nil {
		return err
	}
	for name, definition := range own {
		definitions[name] = definition
	}
	for name, definition := range definitions {
		strict(definition)
		for _, kind := range kindsOf(definition.(object)) {
			reference := object{"$ref": "definitions.json#/definitions/" + name}
			if err := write(filepath.Join(folder, kind+".json"), reference); err != nil {
				return err
			}
		}
	}
	for name, schema := range readOtherwise {
		definitions[name] = schema
	}
	return write(filepath.Join(folder, "definitions.json"), object{"definitions": definitions})
}

// What the API reads more kinds of values for than its document says.
var readOtherwise = object{
	"io.k8s.apimachinery.pkg.util.intstr.IntOrString": object{"type": []string{"string", "integer"}},
	"io.k8s.apimachinery.pkg.api.resource.Quantity":   object{"type": []string{"string", "number"}},
}

// openAPI returns the document of the API, from the module of Kubernetes.
func openAPI() (object, error) {
	// Not by go.mod: that would take in all that Kubernetes itself is built with.
	command := exec.Command("go", "mod", "download", "-json", "k8s.io/kubernetes@"+kubernetes)
	command.Dir = os.TempDir()
	printed, err := command.Output()
	found := struct{ Dir, Sum, Error string }{}
	if json.Unmarshal(printed, &found) != nil || found.Error != "" || err != nil {
		return nil, fmt.Errorf("k8s.io/kubernetes@%s cannot be had: %s %v", kubernetes, found.Error, err)
	}
	if found.Sum != kubernetesSum {
		return nil, fmt.Errorf("k8s.io/kubernetes@%s is another one: its sum is %s", kubernetes, found.Sum)
	}
	text, err := os.ReadFile(filepath.Join(found.Dir, "api", "openapi-spec", "swagger.json"))
	if err != nil {
		return nil, err
	}
	document := object{}
	return document, json.Unmarshal(text, &document)
}

// strict has a schema refuse fields that it does not name: the API drops them without a word.
func strict(schema any) {
	switch value := schema.(type) {
	case object:
		_, named := value["properties"].(object)
		if _, others := value["additionalProperties"]; named && !others {
			value["additionalProperties"] = false
		}
		for _, inner := range value {
			strict(inner)
		}
	case []any:
		for _, inner := range value {
			strict(inner)
		}
	}
}

// kindsOf returns the names by which kubeconform looks for a kind.
func kindsOf(definition object) []string {
	kinds := []string{}
	listed, _ := definition["x-kubernetes-group-version-kind"].([]any)
	for _, one := range listed {
		kind := one.(object)
		parts := []string{kind["kind"].(string)}
		if group, _ := kind["group"].(string); group != "" {
			parts = append(parts, strings.Split(group, ".")[0])
		}
		parts = append(parts, kind["version"].(string))
		kinds = append(kinds, strings.ToLower(strings.Join(parts, "-")))
	}
	return kinds
}

func write(file string, document object) error {
	text, err := json.Marshal(document)
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o600)
}
