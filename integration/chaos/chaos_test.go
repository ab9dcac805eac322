package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// controlVariable makes the test's binary the control's program, which is then a process like any bridge.
const controlVariable = "CHAOS_CONTROL"

func TestMain(m *testing.M) {
	if os.Getenv(controlVariable) != "" {
		if err := RunControl(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(harness.Main(m))
}

const (
	// defaultSeed is that of the short run, the same each time.
	defaultSeed = 1
	// defaultSteps is the length of a round: every kind of fault comes at least once.
	defaultSteps = 1200
)

// settings come from the environment, as make passes them on.
type settings struct {
	plan     Plan
	duration time.Duration // zero for one round
	lenient  bool
}

func readSettings(t *testing.T) settings {
	t.Helper()
	s := settings{plan: Plan{Seed: defaultSeed, Steps: defaultSteps}}
	number := func(name string, bits int) (uint64, bool) {
		text := os.Getenv(name)
		if text == "" {
			return 0, false
		}
		n, err := strconv.ParseUint(text, 10, bits)
		if err != nil {
			t.Fatalf("%s=%s: not a number", name, text)
		}
		return n, true
	}
	var err error
	if text := os.Getenv("CHAOS_FOR"); text != "" {
		if s.duration, err = time.ParseDuration(text); err != nil || s.duration <= 0 {
			t.Fatalf("CHAOS_FOR=%s: not a duration such as 10m", text)
		}
	}
	if seed, given := number("CHAOS_SEED", 64); given {
		s.plan.Seed = seed
	} else if s.duration > 0 {
		s.plan.Seed = rand.Uint64N(1_000_000_000)
	}
	if steps, given := number("CHAOS_STEPS", 31); given {
		s.plan.Steps = int(steps)
	}
	if text := os.Getenv("CHAOS_LENIENT"); text != "" {
		if s.lenient, err = strconv.ParseBool(text); err != nil {
			t.Fatalf("CHAOS_LENIENT=%s: neither true nor false", text)
		}
	}
	name := os.Getenv("CHAOS_MIX")
	if name == "" {
		name = "all"
	}
	if s.plan.Mix, err = MixByName(name); err != nil {
		t.Fatalf("CHAOS_MIX: %v", err)
	}
	return s
}

// binaries returns the programs to be tested: the bridge, and the control.
func binaries(t *testing.T) (bridge, control string) {
	t.Helper()
	bridge, err := harness.BridgeBinary()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatalf("find the test's own binary: %v", err)
	}
	control = filepath.Join(t.TempDir(), "control")
	script := fmt.Sprintf("#!/bin/sh\nexport %s=1\nexec '%s'\n", controlVariable, self)
	if err := os.WriteFile(control, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return bridge, control
}

// TestChaos is the short run of `make test`, one round, and the long one of `make chaos`, rounds of seed after seed until
// CHAOS_FOR is over. The bridge must come through without a fault, and the control must not.
func TestChaos(t *testing.T) {
	s := readSettings(t)
	bridge, control := binaries(t)
	arena := NewArena(t)
	arena.Lenient = s.lenient
	requireCalm(t, arena, bridge, control)
	begin := time.Now()
	var results []*Result
	for plan, done := s.plan, 0; done == 0 || time.Since(begin) < s.duration; plan.Seed++ {
		t.Run(fmt.Sprintf("seed-%d", plan.Seed), func(t *testing.T) {
			t.Logf("seed %d: repeat this round alone with CHAOS_SEED=%d CHAOS_MIX=%s CHAOS_STEPS=%d",
				plan.Seed, plan.Seed, plan.Mix.Name, plan.Steps)
			result := arena.Run(t, plan, bridge, control)
			results = append(results, result)
			requireFaultless(t, result)
			requireControlFails(t, result)
		})
		if done++; len(results) < done {
			break // the round could not be carried out, and the next one could not either
		}
	}
	table := Table(results)
	t.Logf("\n%s", table)
	if err := keepTable(table); err != nil {
		t.Error(err)
	}
}

// requireCalm shows that without faults neither the bridge nor the control breaks a guarantee: what a round finds is due
// to its faults and not to the suite.
func requireCalm(t *testing.T, arena *Arena, bridge, control string) {
	t.Helper()
	calm, err := MixByName("none")
	if err != nil {
		t.Fatal(err)
	}
	t.Run("calm", func(t *testing.T) {
		result := arena.Run(t, Plan{Seed: defaultSeed, Mix: calm, Steps: 150}, bridge, control)
		requireFaultless(t, result)
		if broken := result.Control.Broken(); len(broken) > 0 || result.Control.Report == nil {
			t.Errorf("without any fault the control broke something:\n%s", result.Findings(*result.Control))
		}
	})
}

// mostFindings bounds how many lines of findings a log shows; the papers have them all.
const mostFindings = 60

func requireFaultless(t *testing.T, r *Result) {
	t.Helper()
	if r.Bridge.Faultless() {
		t.Logf("the bridge: %s", r.Bridge.Report)
		return
	}
	lines := strings.Split(r.Findings(r.Bridge), "\n")
	t.Errorf("the bridge broke something; all papers are in %s\n%s", r.Dir,
		strings.Join(lines[:min(len(lines), mostFindings)], "\n"))
}

// requireControlFails ends in an error if the checker finds nothing wrong with the naive publisher, though it was dead or
// paused while things changed: the round would then prove nothing.
func requireControlFails(t *testing.T, r *Result) {
	t.Helper()
	if _, mortal := r.Plan.Mix.Tracks[BridgeTrack]; !mortal || r.Control == nil {
		return
	}
	if r.Control.Report == nil {
		t.Error("the control has no stream")
		return
	}
	t.Logf("the control: %s", strings.SplitN(r.Control.Report.String(), "\n", 2)[0])
	if len(r.Control.Broken()) == 0 {
		t.Error("the control broke no guarantee, so that the bridge's success proves nothing")
	}
}

func keepTable(table string) error {
	if err := os.MkdirAll(papersDir(), 0o755); err != nil {
		return fmt.Errorf("keep the table: %w", err)
	}
	if err := os.WriteFile(filepath.Join(papersDir(), "table.md"), []byte(table), 0o600); err != nil {
		return fmt.Errorf("keep the table: %w", err)
	}
	return nil
}
