package e2e

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// TestStatusPage reads the page of a bridge that may not follow everything, and compares it with /statusz and /metrics.
func TestStatusPage(t *testing.T) {
	r := newRig(t, configMaps)
	r.set("BRIDGE_RESOURCES", "configmaps,pods,widgets.example.com")
	r.allow("page", "", rule("", "configmaps", "list", "watch"))
	b := r.start()
	r.create(configMaps, r.configMap("a", "1"))
	r.require()

	response, err := http.Get(b.URL("/"))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	page := string(body)
	for _, want := range []string{
		"ready · main · deltabridge", "<dd>publishes</dd>", "<td>configmaps</td><td><span class=\"good\">watching</span></td>",
		"<td>pods</td><td><span class=\"bad\">forbidden</span></td>", "<td>resource widgets.example.com</td>",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s:\n%s", want, page)
		}
	}
	harness.Eventually(t, harness.Patience, func() error { return b.Ready(t.Context()) })
	for condition, want := range map[string]float64{"nats": 1, "stream": 1, "kubernetes": 1, "resource": 1} {
		if got := b.Metric(t, "deltabridge_ready", `condition="`+condition+`"`); got != want {
			t.Errorf("deltabridge_ready of %s is %v", condition, got)
		}
	}
	if held := b.Metric(t, "deltabridge_watch_held"); held != 0 {
		t.Errorf("deltabridge_watch_held is %v", held)
	}
	if text := b.StatusText(t); !strings.HasPrefix(text, "{\n  \"version\": ") {
		t.Errorf("/statusz is not for people:\n%.200s", text)
	}
}
