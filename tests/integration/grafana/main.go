// Reads a dashboard strictly with the types that Grafana generates from its schemas: an unknown field, a missing one, or a wrong type is
// an error. Panel options and queries of Prometheus are included.
package main

import (
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

func main() {
	plugins.RegisterDefaultPlugins()
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		fail(err)
	}
	var read dashboard.Dashboard
	for _, err := range []error{read.UnmarshalJSONStrict(text), read.Validate()} {
		// The package also returns empty lists of errors.
		if err != nil && err.Error() != "" {
			fail(err)
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
