// Composecheck reads a Compose file as `docker compose` does, without a Docker engine.
//
//	composecheck docker-compose.yml .env.example        check the two against each other
//	composecheck -json docker-compose.yml my.env        print the file with my.env filled in
//
// The check wants three things: the file is refused while the example's blanks are blank (no
// secret has a default), it is accepted once they are filled in (the example names every variable
// that is needed), and all services, those of optional profiles too, fit together.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/types"
)

func main() {
	asJSON := flag.Bool("json", false, "print the file with its variables filled in")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: composecheck [-json] COMPOSE_FILE ENV_FILE")
		os.Exit(2)
	}
	run := check
	if *asJSON {
		run = show
	}
	if err := run(flag.Arg(0), flag.Arg(1)); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", flag.Arg(0), err)
		os.Exit(1)
	}
}

func check(composeFile, envFile string) error {
	values, err := dotenv.Read(envFile)
	if err != nil {
		return err
	}
	if _, err := load(composeFile, values); err == nil {
		return fmt.Errorf("starts with the blanks of %s: a secret has a default", envFile)
	}
	for name, value := range values {
		if value == "" {
			values[name] = "filled-in"
		}
	}
	project, err := load(composeFile, values)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d services, as Compose reads it\n", composeFile, len(project.Services))
	return nil
}

func show(composeFile, envFile string) error {
	values, err := dotenv.Read(envFile)
	if err != nil {
		return err
	}
	project, err := load(composeFile, values)
	if err != nil {
		return err
	}
	text, err := project.MarshalJSON()
	if err != nil {
		return err
	}
	fmt.Println(string(text))
	return nil
}

// load takes variables from values only, so that the caller's environment changes nothing.
func load(composeFile string, values map[string]string) (*types.Project, error) {
	environment := make([]string, 0, len(values))
	for name, value := range values {
		environment = append(environment, name+"="+value)
	}
	options, err := cli.NewProjectOptions(
		[]string{composeFile},
		cli.WithEnv(environment),
		cli.WithProfiles([]string{"*"}),
	)
	if err != nil {
		return nil, err
	}
	project, err := options.LoadProject(context.Background())
	if err == nil && len(project.Services) == 0 {
		err = errors.New("has no services")
	}
	return project, err
}
