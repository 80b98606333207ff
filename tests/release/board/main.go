// Check a board of Grafana against the schema of dashboards, of its panels and of its queries.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
)

func main() {
	raw, err := os.ReadFile(os.Args[1])
	check(err)
	runtime := cog.NewRuntime()
	runtime.RegisterPanelcfgVariant(stat.VariantConfig())
	runtime.RegisterPanelcfgVariant(timeseries.VariantConfig())
	board := dashboard.Dashboard{}
	check(board.UnmarshalJSONStrict(raw))
	check(board.Validate())

	// A panel of the SDK accepts any type and any query.
	var panels struct {
		Panels []struct {
			Type    string
			Targets []json.RawMessage
		}
	}
	check(json.Unmarshal(raw, &panels))
	for _, panel := range panels.Panels {
		if _, found := runtime.ConfigForPanelcfgVariant(panel.Type); !found {
			check(fmt.Errorf("unknown type of a panel: %q", panel.Type))
		}
		for _, target := range panel.Targets {
			query := prometheus.Dataquery{}
			check(query.UnmarshalJSONStrict(target))
		}
	}
}

// The SDK may return an empty list of errors, which is not nil.
func check(err error) {
	if errs, isList := err.(cog.BuildErrors); err != nil && !(isList && len(errs) == 0) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
