package harness

import "testing"

func TestSumMetric(t *testing.T) {
	const text = `# HELP a_total Help.
# TYPE a_total counter
a_total{group="",resource="pods",op="added"} 3
a_total{group="",resource="pods",op="deleted"} 4
a_total{group="apps",resource="deployments",op="added"} 50
a_total_other{resource="pods"} 1000
plain 1.5e+03
`
	for _, c := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"a_total", nil, 57},
		{"a_total", []string{`resource="pods"`}, 7},
		{"a_total", []string{`resource="pods"`, `op="added"`}, 3},
		{"a_total", []string{`resource="none"`}, 0},
		{"plain", nil, 1500},
	} {
		if got := sumMetric(text, c.name, c.labels...); got != c.want {
			t.Errorf("%s%v is %v, want %v", c.name, c.labels, got, c.want)
		}
	}
}
