package chaos

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// papersDir is where the papers of rounds are kept.
func papersDir() string { return filepath.Join(harness.RepoRoot(), "bin", "chaos") }

// keep writes the papers of a round in which something was wrong: the plan, the faults, the findings, every message,
// every recorded change, and the logs.
func (r *round) keep(result *Result) {
	if result.Bridge.Faultless() {
		return
	}
	result.Dir = filepath.Join(papersDir(), fmt.Sprintf("seed-%d-%s", r.plan.Seed, r.plan.Mix.Name))
	papers := map[string]string{}
	var plan, faults, recorded strings.Builder
	r.plan.Print(&plan)
	for _, i := range r.injected {
		fmt.Fprintln(&faults, i)
	}
	for _, c := range r.recording.Changes() {
		fmt.Fprintf(&recorded, "%s %s %s uid=%s\n", c.RV, c.Kind, c.Object, c.UID)
	}
	papers["plan.txt"], papers["faults.txt"], papers["recorded.txt"] = plan.String(), faults.String(), recorded.String()
	outcomes := []Outcome{result.Bridge}
	if result.Control != nil {
		outcomes = append(outcomes, *result.Control)
	}
	for n, c := range r.contestants {
		papers[c.name+"-findings.txt"] = result.Findings(outcomes[n]) + "\n"
		var messages strings.Builder
		if s := outcomes[n].Stream; s != nil {
			for _, m := range s.Messages {
				fmt.Fprintf(&messages, "%s %s\n", m.Subject, m.Summary())
			}
		}
		papers[c.name+"-messages.txt"] = messages.String()
		for i, b := range c.all {
			papers[fmt.Sprintf("%s-%d-pid%d.log", c.name, i+1, b.PID())] = b.Stdout() + b.Stderr()
		}
	}
	if err := errors.Join(os.RemoveAll(result.Dir), os.MkdirAll(result.Dir, 0o755)); err != nil {
		r.t.Errorf("keep the round's papers: %v", err)
		return
	}
	for name, text := range papers {
		if err := os.WriteFile(filepath.Join(result.Dir, name), []byte(text), 0o600); err != nil {
			r.t.Errorf("keep the round's papers: %v", err)
		}
	}
}
