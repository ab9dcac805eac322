package chaos

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/deltabridge/deltabridge/integration/check"
)

func printed(p Plan) string {
	var b strings.Builder
	p.Print(&b)
	return b.String()
}

func everything(t *testing.T) Mix {
	t.Helper()
	mix, err := MixByName("all")
	if err != nil {
		t.Fatal(err)
	}
	return mix
}

// TestPlanFollowsFromItsSeed shows that a round can be repeated, and that another seed is another round.
func TestPlanFollowsFromItsSeed(t *testing.T) {
	mix := everything(t)
	first := printed(Plan{Seed: 7, Mix: mix, Steps: 600})
	if first != printed(Plan{Seed: 7, Mix: mix, Steps: 600}) {
		t.Error("one seed makes two plans")
	}
	if first == printed(Plan{Seed: 8, Mix: mix, Steps: 600}) {
		t.Error("two seeds make one plan")
	}
	longer := printed(Plan{Seed: 7, Mix: mix, Steps: 1200})
	for _, line := range strings.Split(strings.TrimSpace(first), "\n")[1:] {
		if !strings.Contains(longer, line+"\n") {
			t.Fatalf("a longer round of the same seed has no %q", line)
		}
	}
}

// TestPlanHasEveryFault shows that a round of the usual length meets every kind of fault, and that the load does all it
// can do.
func TestPlanHasEveryFault(t *testing.T) {
	plan := Plan{Seed: defaultSeed, Mix: everything(t), Steps: defaultSteps}
	for track, kinds := range plan.Mix.Tracks {
		next := plan.Faults(track)
		met, at := map[Kind]bool{}, 0
		for {
			f, _ := next()
			if at += f.After + f.Hold; at > plan.Steps {
				break
			}
			met[f.Kind] = true
		}
		for _, kind := range kinds {
			if !met[kind] {
				t.Errorf("no %s in %d steps", kind, plan.Steps)
			}
		}
	}
	counts := map[string]int{}
	for worker := range workers {
		next := plan.Script(worker)
		lives := map[string]bool{}
		for range plan.Steps / workers {
			step := next()
			key := fmt.Sprint(step.Resource, step.Name)
			if create := step.Action == Create; create == lives[key] {
				t.Fatalf("%s of an object that lives: %t", step, lives[key])
			}
			lives[key] = step.Action != Delete
			counts[string(step.Action)+" "+resources[step.Resource].plural()]++
		}
	}
	for _, action := range []Action{Create, Update, Delete, Replace} {
		for _, r := range resources {
			if counts[string(action)+" "+r.plural()] == 0 {
				t.Errorf("no %s of %s", action, r.plural())
			}
		}
	}
}

func TestMixByName(t *testing.T) {
	if _, err := MixByName("nothing"); err == nil || !strings.Contains(err.Error(), "broker") {
		t.Errorf("the error does not name what there is: %v", err)
	}
	for name, keeps := range map[string]bool{"all": false, "api": false, "broker": true, "bridge": true, "none": true} {
		if mix, err := MixByName(name); err != nil || mix.keepsVersions() != keeps {
			t.Errorf("%s: %v, %v", name, mix.keepsVersions(), err)
		}
	}
}

// TestCauses holds which faults a finding is laid to.
func TestCauses(t *testing.T) {
	fault := func(number int, from, to string) Injected { return Injected{Number: number, From: from, To: to} }
	r := &Result{Injected: []Injected{fault(1, "", "20"), fault(2, "30", "40"), fault(3, "35", "60"), fault(4, "100", "120")}}
	for version, want := range map[string][]int{
		"10": {1}, "25": {1, 2}, "37": {2, 3}, "50": {3}, "99": {3, 4}, "130": {4}, "": nil,
	} {
		var got []int
		for _, i := range r.causes(check.Violation{RV: version}) {
			got = append(got, i.Number)
		}
		if !slices.Equal(got, want) {
			t.Errorf("version %q is laid to faults %v, want %v", version, got, want)
		}
	}
}

// TestTableAndFindings holds what a finding says and how it is counted.
func TestTableAndFindings(t *testing.T) {
	stream := &check.Stream{Name: "KUBE", Root: "kube.main", Cluster: "main"}
	report := &check.Report{Messages: 3, Lost: 1, Recorded: 4, Violations: []check.Violation{
		{Kind: check.Lost, Subject: "kube.main.core.configmaps.default.a", Detail: "version 35 is not there", RV: "35"},
	}}
	r := &Result{
		Plan: Plan{Seed: 9, Mix: Mix{Name: "all"}, Steps: 12},
		Injected: []Injected{
			{Fault: Fault{Kind: Kill}, Number: 1, From: "30", To: "40"},
			{Fault: Fault{Kind: Kill}, Number: 2, From: "50", To: "60", Err: errors.New("why not")},
		},
		Bridge:  Outcome{Stream: stream, Report: report, Misdeeds: []string{"it ended by itself"}},
		Control: &Outcome{Stream: stream, Report: report},
	}
	findings := r.Findings(r.Bridge)
	for _, want := range []string{"seed 9", "it ended by itself", "version 35 is not there", "fault 1, bridge-kill"} {
		if !strings.Contains(findings, want) {
			t.Errorf("%q is not in\n%s", want, findings)
		}
	}
	table := Table([]*Result{r})
	for _, want := range []string{"| 9 | all | 12 | 2 | 4 | 3 |", "1 broken", "| bridge-kill | 2 | 1 |"} {
		if !strings.Contains(table, want) {
			t.Errorf("%q is not in\n%s", want, table)
		}
	}
	if r.Bridge.Faultless() {
		t.Error("a lost version passes for faultless")
	}
}
