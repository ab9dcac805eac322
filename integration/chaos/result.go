package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/deltabridge/deltabridge/integration/check"
	"github.com/deltabridge/deltabridge/integration/harness"
)

// Result is what came of a round.
type Result struct {
	Plan     Plan
	Injected []Injected
	Steps    map[Action]int
	Bridge   Outcome
	Control  *Outcome // nil where there was none
	Took     time.Duration
	// Dir has the round's papers, where something was wrong.
	Dir string
}

// Outcome is how one contestant came through.
type Outcome struct {
	Stream     *check.Stream
	Report     *check.Report
	Misdeeds   []string // what it did that no fault asked for
	Unrecorded []string // versions that the recording should have
	Restless   string   // why the stream was not at rest, if it was not
}

// guarantees are the violations that tell a bridge's faults from matters of form.
var guarantees = []check.Kind{
	check.Inversion, check.Duplicate, check.Lost, check.LostDelete, check.Missing, check.Stale, check.Ahead,
}

// Broken returns the violations of guarantees: order, nothing lost, nothing twice, watermarks.
func (o Outcome) Broken() []check.Violation {
	if o.Report == nil {
		return nil
	}
	return o.Report.Only(guarantees...)
}

// Faultless reports whether nothing at all is wrong.
func (o Outcome) Faultless() bool {
	return o.Report != nil && len(o.Report.Violations) == 0 && len(o.Misdeeds) == 0 && len(o.Unrecorded) == 0 &&
		o.Restless == "" && o.Report.Messages > 0
}

// Findings returns all that is wrong with an outcome, each finding with what the stream has next to it and with the
// faults that it can come from.
func (r *Result) Findings(o Outcome) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, mix %s: ", r.Plan.Seed, r.Plan.Mix.Name)
	if o.Report == nil {
		b.WriteString("there is no stream to check")
	} else {
		fmt.Fprintf(&b, "%s", strings.SplitN(o.Report.String(), "\n", 2)[0])
	}
	for _, text := range append(slices.Clone(o.Misdeeds), o.Restless) {
		if text != "" {
			fmt.Fprintf(&b, "\n  %s", text)
		}
	}
	if n := len(o.Unrecorded); n > 0 {
		fmt.Fprintf(&b, "\n  the recording lacks %d versions that the API server acknowledged, such as %s", n, o.Unrecorded[0])
	}
	if o.Report == nil {
		return b.String()
	}
	for _, v := range o.Report.Violations {
		fmt.Fprintf(&b, "\n  %s", o.Stream.Explain(v))
		for _, i := range r.causes(v) {
			fmt.Fprintf(&b, "\n      %s", i)
		}
	}
	return b.String()
}

// causes returns the faults during which a violation's version came into being; where there is none, the last one
// before it and the first one after it.
func (r *Result) causes(v check.Violation) []Injected {
	version, err := strconv.ParseInt(v.RV, 10, 64)
	if err != nil {
		return nil
	}
	var during []Injected
	var before, after *Injected
	for n := range r.Injected {
		i := &r.Injected[n]
		from, to := revision(i.From), revision(i.To)
		switch {
		case from <= version && version <= to:
			during = append(during, *i)
		case to < version && (before == nil || to > revision(before.To)):
			before = i
		case from > version && (after == nil || from < revision(after.From)):
			after = i
		}
	}
	for _, i := range []*Injected{before, after} {
		if i != nil && len(during) == 0 {
			during = append(during, *i)
		}
	}
	if len(during) == 1 && before != nil && after != nil && during[0].Number == before.Number {
		during = append(during, *after)
	}
	return during
}

// revision returns a version as a number, zero for one that was not known yet.
func revision(version string) int64 {
	n, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// papersDir is where the papers of rounds are kept.
func papersDir() string { return filepath.Join(harness.RepoRoot(), "bin", "chaos") }

// keep writes the papers of a round in which something was wrong: the plan, the faults, the findings, every message,
// every recorded change, and the logs.
func (r *round) keep(result *Result) {
	if result.Bridge.Faultless() {
		return
	}
	result.Dir = filepath.Join(papersDir(), fmt.Sprintf("seed-%d", r.plan.Seed))
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
	if err := os.MkdirAll(result.Dir, 0o755); err != nil {
		r.t.Errorf("keep the round's papers: %v", err)
		return
	}
	for name, text := range papers {
		if err := os.WriteFile(filepath.Join(result.Dir, name), []byte(text), 0o600); err != nil {
			r.t.Errorf("keep the round's papers: %v", err)
		}
	}
}
