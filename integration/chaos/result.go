package chaos

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/deltabridge/deltabridge/integration/check"
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
	// Withheld counts the versions that are only said to be missing although the API server still offered them.
	Withheld int
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
		o.Restless == "" && o.Withheld == 0 && o.Report.Messages > 0
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
	if o.Withheld > 0 {
		fmt.Fprintf(&b, "\n  %d versions are inside gaps, though the API server kept all versions", o.Withheld)
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
	var causes []Injected
	var before, after *Injected
	for n := range r.Injected {
		i := &r.Injected[n]
		switch from, to := revision(i.From), revision(i.To); {
		case from <= version && version <= to:
			causes = append(causes, *i)
		case to < version && (before == nil || to > revision(before.To)):
			before = i
		case from > version && (after == nil || from < revision(after.From)):
			after = i
		}
	}
	if len(causes) > 0 {
		return causes
	}
	for _, i := range []*Injected{before, after} {
		if i != nil {
			causes = append(causes, *i)
		}
	}
	return causes
}

// revision returns a version as a number, zero for one that was not known yet.
func revision(version string) int64 {
	n, err := strconv.ParseInt(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
