package chaos

import (
	"fmt"
	"math/rand/v2"
	"time"
)

const (
	// workers change objects beside one another, each its own.
	workers = 6
	// hotObjects and coldObjects are how many objects of each resource a worker has.
	hotObjects, coldObjects = 1, 5
	// longestPause is how long a worker waits after a step, at most.
	longestPause = 200 * time.Millisecond
)

// Action is what a step does to an object.
type Action string

// The actions.
const (
	Create Action = "create"
	Update Action = "update"
	Delete Action = "delete"
	// Replace deletes the object and creates another under its name, at once.
	Replace Action = "replace"
)

// Step is one thing that the load does.
type Step struct {
	Action   Action
	Resource int // index into resources
	Name     string
	Value    string // the new content, unlike any other of the object
	Size     int    // bytes of content beside it
	Status   bool   // an update of the status, of a resource that has one
	Pause    time.Duration
}

// String returns the step on one line.
func (s Step) String() string {
	status := ""
	if s.Status {
		status = " status"
	}
	return fmt.Sprintf("%-7s %s %s%s, value %s, %d bytes, then %s",
		s.Action, resources[s.Resource].plural(), s.Name, status, s.Value, s.Size, s.Pause)
}

// script makes a worker's steps. It knows which objects there are: every step succeeds before the next one comes.
type script struct {
	rng    *rand.Rand
	worker int
	n      int
	lives  map[string]bool
	burst  int  // how many more updates of the same object come without a pause
	last   Step // the step before
}

// Script returns a worker's steps, without end.
func (p Plan) Script(worker int) func() Step {
	s := &script{rng: p.source(workerSource + uint64(worker)), worker: worker, lives: map[string]bool{}}
	return s.next
}

func (s *script) next() Step {
	s.n++
	if s.burst > 0 {
		s.burst--
		step := s.last
		step.Value = s.value()
		return step
	}
	step := Step{
		Resource: s.rng.IntN(len(resources)),
		Value:    s.value(),
		Size:     s.size(),
		Pause:    time.Duration(s.rng.Int64N(int64(longestPause))).Round(time.Millisecond),
	}
	if hot := s.rng.IntN(10) < 6; hot {
		step.Name = fmt.Sprintf("hot-%d-%d", s.worker, s.rng.IntN(hotObjects))
	} else {
		step.Name = fmt.Sprintf("cold-%d-%d", s.worker, s.rng.IntN(coldObjects))
	}
	step.Action = s.action(step)
	if step.Action == Update {
		step.Status = resources[step.Resource].status && s.rng.IntN(3) == 0
		if s.rng.IntN(25) == 0 {
			s.burst = 5 + s.rng.IntN(15)
			step.Pause = 0
		}
	}
	s.last = step
	return step
}

// action chooses what can be done to the step's object, and notes whether it lives afterwards.
func (s *script) action(step Step) Action {
	key := fmt.Sprintf("%d/%s", step.Resource, step.Name)
	if !s.lives[key] {
		s.lives[key] = true
		return Create
	}
	switch n := s.rng.IntN(100); {
	case n < 12:
		s.lives[key] = false
		return Delete
	case n < 22:
		return Replace
	default:
		return Update
	}
}

func (s *script) value() string { return fmt.Sprintf("%d-%d", s.worker, s.n) }

// size is small mostly, and now and then too large for a single packet.
func (s *script) size() int {
	if s.rng.IntN(20) == 0 {
		return 20_000 + s.rng.IntN(80_000)
	}
	return s.rng.IntN(2000)
}
