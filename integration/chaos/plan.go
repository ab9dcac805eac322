package chaos

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Plan is everything that happens in a round. All of it follows from the values here.
type Plan struct {
	Seed uint64
	// Mix says which faults there are.
	Mix Mix
	// Steps is how much the load does before it stops, each worker its part.
	Steps int
}

// Mix is a set of faults: of each track those that may happen. Tracks run beside one another.
type Mix struct {
	Name   string
	Tracks map[Track][]Kind
}

// keepsVersions reports whether the API server keeps every version for as long as a round lasts, so that a bridge can
// publish all of them and needs no gap.
func (m Mix) keepsVersions() bool {
	for _, kinds := range m.Tracks {
		if slices.Contains(kinds, APIRestart) || slices.Contains(kinds, APICompact) {
			return false
		}
	}
	return true
}

// Track is what faults are done to. One track's faults come one after the other.
type Track string

// The tracks.
const (
	BridgeTrack Track = "bridge"
	APITrack    Track = "api"
	NATSTrack   Track = "nats"
)

// Kind is a kind of fault.
type Kind string

// The kinds of faults.
const (
	// Kill ends the bridge with SIGKILL, and starts it again.
	Kill Kind = "bridge-kill"
	// Term ends the bridge with SIGTERM, and starts it again.
	Term Kind = "bridge-term"
	// Pause stops the bridge with SIGSTOP and continues it.
	Pause Kind = "bridge-pause"
	// Two starts a second bridge beside the first. One of the two then goes; where it is the second, the first, which
	// was fenced, is started again.
	Two Kind = "bridge-two"
	// Zombie stops the bridge with SIGSTOP, starts another, and continues the first.
	Zombie Kind = "bridge-zombie"

	// APICut cuts the bridge's connections to the API server.
	APICut Kind = "api-cut"
	// APIRefuse cuts them and refuses new ones for a while.
	APIRefuse Kind = "api-refuse"
	// APIDelay delays what is sent between the bridge and the API server.
	APIDelay Kind = "api-delay"
	// APIStall lets nothing through for a while, on connections that stay open.
	APIStall Kind = "api-stall"
	// APIRestart restarts the API server; its watch cache is empty then.
	APIRestart Kind = "api-restart"
	// APICompact compacts the store and restarts the API server, so that older versions are nowhere any more.
	APICompact Kind = "api-compact"

	// NATSCut cuts the bridge's connections to NATS.
	NATSCut Kind = "nats-cut"
	// NATSRefuse cuts them and refuses new ones for a while.
	NATSRefuse Kind = "nats-refuse"
	// NATSDelay delays what is sent between the bridge and NATS.
	NATSDelay Kind = "nats-delay"
	// NATSStall lets nothing through for a while, on connections that stay open.
	NATSStall Kind = "nats-stall"
	// NATSNode restarts one of the nodes.
	NATSNode Kind = "nats-node"
	// NATSAll restarts all nodes.
	NATSAll Kind = "nats-all"
	// StepDown lets the stream's leader hand over to another node.
	StepDown Kind = "nats-stepdown"
)

// natsFaults are all faults of NATS.
var natsFaults = []Kind{NATSCut, NATSRefuse, NATSDelay, NATSStall, NATSNode, NATSAll, StepDown}

// mixes are the known ones.
var mixes = []Mix{
	{Name: "all", Tracks: map[Track][]Kind{
		BridgeTrack: {Kill, Kill, Term, Pause, Two, Zombie},
		APITrack:    {APICut, APIRefuse, APIDelay, APIStall, APIRestart, APICompact},
		NATSTrack:   natsFaults,
	}},
	// The bridge keeps running, and the API server too.
	{Name: "broker", Tracks: map[Track][]Kind{
		APITrack:  {APICut, APIRefuse, APIDelay, APIStall},
		NATSTrack: natsFaults,
	}},
	{Name: "bridge", Tracks: map[Track][]Kind{BridgeTrack: {Kill, Kill, Term, Pause, Two, Zombie}}},
	{Name: "api", Tracks: map[Track][]Kind{APITrack: {APICut, APIRefuse, APIDelay, APIStall, APIRestart, APICompact}}},
	{Name: "none", Tracks: map[Track][]Kind{}},
}

// MixByName returns a known mix.
func MixByName(name string) (Mix, error) {
	var known []string
	for _, mix := range mixes {
		if mix.Name == name {
			return mix, nil
		}
		known = append(known, mix.Name)
	}
	return Mix{}, fmt.Errorf("no mix of faults is called %q; there are %s", name, strings.Join(known, ", "))
}

// Fault is one fault. Its times are counted in steps of the load, so that they mean the same on any machine.
type Fault struct {
	Kind Kind
	// After is how many steps after the track's last fault it begins.
	After int
	// Hold is how many steps it lasts, of those that last.
	Hold int
	// Delay is of those that delay.
	Delay time.Duration
	// Pick decides what else there is to choose: the node, the signal, which bridge goes.
	Pick int
}

// String returns the fault on one line.
func (f Fault) String() string {
	return fmt.Sprintf("%-13s after %3d steps, for %3d, delay %v, pick %d", f.Kind, f.After, f.Hold, f.Delay, f.Pick)
}

// Each source of random numbers has a number of its own, so that what one draws changes nothing for the others.
const (
	workerSource = 0
	trackSource  = 1000
)

func (p Plan) source(n uint64) *rand.Rand { return rand.New(rand.NewPCG(p.Seed, n)) }

// Faults returns the faults of a track, without end. Every kind of the mix comes once before one comes again.
func (p Plan) Faults(track Track) func() (Fault, bool) {
	kinds := p.Mix.Tracks[track]
	tracks := []Track{BridgeTrack, APITrack, NATSTrack}
	rng := p.source(trackSource + uint64(slices.Index(tracks, track)))
	var bag []Kind
	return func() (Fault, bool) {
		if len(kinds) == 0 {
			return Fault{}, false
		}
		if len(bag) == 0 {
			bag = slices.Clone(kinds)
			rng.Shuffle(len(bag), func(i, j int) { bag[i], bag[j] = bag[j], bag[i] })
		}
		f := Fault{
			Kind:  bag[0],
			After: 20 + rng.IntN(80),
			Hold:  10 + rng.IntN(70),
			Delay: time.Duration(20+rng.IntN(400)) * time.Millisecond,
			Pick:  rng.IntN(60),
		}
		bag = bag[1:]
		return f, true
	}
}

// plannedFaults is how many faults of each track a printed plan has, at most: more than a round of its steps reaches.
func (p Plan) plannedFaults() int { return p.Steps/60 + 1 }

// Print writes the plan: the faults of each track, and the load's steps.
func (p Plan) Print(w io.Writer) {
	fmt.Fprintf(w, "seed %d, mix %s, %d steps\n", p.Seed, p.Mix.Name, p.Steps)
	for _, track := range []Track{BridgeTrack, APITrack, NATSTrack} {
		next := p.Faults(track)
		for i := range p.plannedFaults() {
			if f, ok := next(); ok {
				fmt.Fprintf(w, "%s %3d: %s\n", track, i+1, f)
			}
		}
	}
	for worker := range workers {
		next := p.Script(worker)
		for i := range p.Steps / workers {
			fmt.Fprintf(w, "worker %d %4d: %s\n", worker, i+1, next())
		}
	}
}
