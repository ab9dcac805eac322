package bridge

import (
	"context"
)

// Elector says when this process is the one to publish.
type Elector interface {
	// Run calls lead each time this process is elected, until ctx ends, and returns when lead has. lead's first context
	// ends with ctx or when the election is void; its second only in the latter case, before the first.
	Run(ctx context.Context, lead func(ctx, lease context.Context))
	// Leading reports whether this process is elected.
	Leading() bool
	// Holder returns who is, as far as is known; empty for nobody.
	Holder() string
	// Err returns why this process cannot stand for election at the moment, nil if it can.
	Err() error
}

// lead runs sessions whenever this process is to publish, until the context ends. It returns how many changes were left
// by a drain; what a lost election leaves is for the next leader to publish.
func (b *Bridge) lead(ctx context.Context) int64 {
	if b.options.Elector == nil {
		return b.sessions(ctx, context.WithoutCancel(ctx))
	}
	left := int64(0)
	b.options.Elector.Run(ctx, func(term, lease context.Context) {
		leftNow := b.sessions(term, lease)
		if ctx.Err() != nil {
			left = leftNow
		}
		b.standBy()
	})
	return left
}

// standBy forgets the last session and what failed in it. The connection to NATS stays.
func (b *Bridge) standBy() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.source, b.publisher, b.positions, b.fenced = nil, nil, nil, false
	b.resumed = Resumed{}
	clear(b.phaseErr)
	clear(b.logged)
}

// leads reports whether this process is the one to publish.
func (b *Bridge) leads() bool { return b.options.Elector == nil || b.options.Elector.Leading() }

// leaderCheck is the condition that leader election adds; false if there is no election. A standby is ready as long as
// it could take over.
func (b *Bridge) leaderCheck() (Check, bool) {
	e := b.options.Elector
	if e == nil {
		return Check{}, false
	}
	c := Check{Name: "leader", OK: true}
	err := e.Err()
	switch leading, holder := e.Leading(), e.Holder(); {
	case leading && err != nil:
		c.Message = "leading, but renewal fails: " + err.Error()
	case leading:
		c.Message = "leading"
	case err != nil:
		c.OK, c.Message = false, "standby, and cannot take over: "+err.Error()
	case holder == "":
		c.Message = "standby, nobody leads"
	default:
		c.Message = "standby, " + holder + " leads"
	}
	return c, true
}

// LeaderStatus is what /statusz shows of the election.
type LeaderStatus struct {
	Leading bool   `json:"leading"`
	Holder  string `json:"holder,omitempty"` // of the lease, when it was last seen
	Error   string `json:"error,omitempty"`  // why the lease cannot be read or written
}

// leaderStatus returns nil if there is no election.
func (b *Bridge) leaderStatus() *LeaderStatus {
	e := b.options.Elector
	if e == nil {
		return nil
	}
	return &LeaderStatus{Leading: e.Leading(), Holder: e.Holder(), Error: text(e.Err())}
}
