package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/deltabridge/deltabridge/internal/bridge"
	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/informer"
	"github.com/deltabridge/deltabridge/internal/message"
	"github.com/deltabridge/deltabridge/internal/server"
)

// documentedValues returns the values that docs/metrics.md says a label of a metric has.
func documentedValues(t *testing.T, label, metric string) []string {
	t.Helper()
	var docs bytes.Buffer
	if err := server.WriteDocs(&docs); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(docs.String()) {
		if strings.HasPrefix(line, "| `"+label+"` | ") && strings.Contains(line, "`"+metric+"`") {
			cells := strings.Split(line, " | ")
			var out []string
			for _, value := range strings.Split(strings.Trim(cells[2], " |\n"), ", ") {
				out = append(out, strings.Trim(value, "`"))
			}
			return out
		}
	}
	t.Fatalf("docs/metrics.md has no label %s of %s", label, metric)
	return nil
}

// TestLabelValues holds the values that internal/server knows, which is on its own, to those that the others use: what it
// does not know would be counted as "other".
func TestLabelValues(t *testing.T) {
	used := map[[2]string][]string{}
	for _, s := range informer.States {
		used[[2]string{"state", "informer_state"}] = append(used[[2]string{"state", "informer_state"}], string(s))
	}
	for op := change.OpAdded; op.String() != ""; op++ {
		used[[2]string{"op", "events_received_total"}] = append(used[[2]string{"op", "events_received_total"}], op.String())
	}
	for l := message.LevelMetadata; l <= message.LevelNone; l++ {
		used[[2]string{"action", "oversize_total"}] = append(used[[2]string{"action", "oversize_total"}], l.String())
	}
	used[[2]string{"condition", "ready"}] = bridge.Conditions
	used[[2]string{"reason", "messages_suppressed_total"}] = literals(t, "../../internal/publisher/decide.go", `suppress\w+\s*= "([^"]+)"`)
	used[[2]string{"reason", "relists_total"}] = slices.Concat(
		literals(t, "../../internal/informer/listwatch.go", `\breason :?= "([^"]+)"`),
		literals(t, "../../internal/informer/origin.go", `origin\.Reason.*"([^"]+)", true`),
		literals(t, "../../internal/bridge/positions.go", `origin\.Reason = "([^"]+)"`),
		literals(t, "checkpoint.go", `return "([a-z-]+)"`),
		literals(t, "checkpoint.go", `Watermark\{\}, "([a-z-]+)"`),
	)
	for name, values := range used {
		documented := documentedValues(t, name[0], name[1])
		for _, v := range values {
			if !slices.Contains(documented, v) {
				t.Errorf("%s{%s=%q} is used and not documented", name[1], name[0], v)
			}
		}
		for _, v := range documented {
			if !slices.Contains(values, v) {
				t.Errorf("%s{%s=%q} is documented and not used", name[1], name[0], v)
			}
		}
	}
}

// literals returns what a pattern's group matches in a file of code.
func literals(t *testing.T, path, pattern string) []string {
	t.Helper()
	code, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, match := range regexp.MustCompile(pattern).FindAllSubmatch(code, -1) {
		out = append(out, string(match[1]))
	}
	if len(out) == 0 {
		t.Fatalf("%s has no match of %s", path, pattern)
	}
	return out
}
