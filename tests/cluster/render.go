// Renders the server image's config template from the environment, with the functions that the
// image's own renderer gives it.
package main

import (
	"fmt"
	"os"
	"strings"
	"text/template"
)

func main() {
	environment := map[string]string{}
	for _, pair := range os.Environ() {
		name, value, _ := strings.Cut(pair, "=")
		environment[name] = value
	}
	functions := template.FuncMap{
		"default": func(value any, otherwise string) string {
			if text, ok := value.(string); ok && text != "" {
				return text
			}
			return otherwise
		},
		"lower": strings.ToLower,
		"split": strings.Split,
		"trim":  strings.TrimSpace,
	}
	text, err := os.ReadFile(os.Args[1])
	if err == nil {
		parsed, failed := template.New("config").Funcs(functions).Parse(string(text))
		if err = failed; err == nil {
			err = parsed.Execute(os.Stdout, map[string]any{"Env": environment})
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
