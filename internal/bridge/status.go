package bridge

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/deltabridge/deltabridge/internal/informer"
)

// Check is one condition for being ready.
type Check struct {
	Name    string
	OK      bool
	Message string
}

// Conditions are the names of the conditions for being ready. "resource" is followed by the resource's name; "object" and
// "objects", which are remarks and always met, are not among them.
var Conditions = []string{"shutdown", "nats", "leader", "stream", "ledger", "publishing", "kubernetes", "resource"}

// Ready returns the conditions for being ready. A resource that has a named reason for not being followed does not
// make the bridge unready: it never holds up another one.
func (b *Bridge) Ready() []Check {
	b.mu.Lock()
	source, p, draining, fenced := b.source, b.publisher, b.draining, b.fenced
	epoch := b.resumed.Epoch
	streamErr, resumeErr, informersErr := b.phaseErr["stream"], b.phaseErr["resume"], b.phaseErr["informers"]
	b.mu.Unlock()

	var out []Check
	add := func(name string, ok bool, message string) {
		out = append(out, Check{Name: name, OK: ok, Message: message})
	}
	failed := func(name string, err error) { add(name, err == nil, text(err)) }
	if draining {
		add("shutdown", false, "stopping: nothing new is taken, the rest is being published")
	}
	failed("nats", b.options.Broker.Err())
	if c, elects := b.leaderCheck(); elects {
		add(c.Name, c.OK, c.Message)
		if !b.leads() {
			return out
		}
	}
	failed("stream", streamErr)
	switch {
	case resumeErr != nil:
		failed("ledger", resumeErr)
	case p == nil && informersErr == nil:
		add("ledger", false, "what the stream holds has not been read yet")
	default:
		add("ledger", true, "")
	}
	if p != nil {
		trouble, ok := p.Trouble()
		lasting := ok && time.Since(trouble.Since) > troublePatience
		switch {
		case fenced:
			add("publishing", false, fmt.Sprintf("another writer has taken over from epoch %d; stop one of the two, then restart this one", epoch))
		case lasting:
			add("publishing", false, trouble.Reason+": "+trouble.Message)
		default:
			add("publishing", true, "")
		}
		parked := p.Parked()
		for i, subject := range slices.Sorted(maps.Keys(parked)) {
			if i == maxParkedShown {
				add("objects", true, fmt.Sprintf("%d more are not published", len(parked)-i))
				break
			}
			add("object "+subject, true, "not published: "+parked[subject])
		}
	}
	switch {
	case informersErr != nil:
		failed("kubernetes", informersErr)
		return out
	case source == nil:
		add("kubernetes", false, "waiting for the stream")
		return out
	}
	overview := source.Overview()
	switch {
	case overview.Message != "":
		add("kubernetes", false, overview.Message)
	case !overview.Reached:
		add("kubernetes", false, "the API server is being asked what it has")
	default:
		add("kubernetes", true, "")
	}
	for _, r := range overview.Resources {
		add("resource "+r.Resource.String(), r.Settled, describe(r.Status))
	}
	for _, name := range overview.Missing {
		add("resource "+name, true, "absent: the API server does not have it; it is followed once it does")
	}
	for _, u := range overview.Unknown {
		add("resource "+u.Pattern, true, "unknown: its API group cannot be discovered: "+u.Message)
	}
	return out
}

// maxParkedShown bounds how many objects that cannot be published are named.
const maxParkedShown = 20

func describe(s informer.Status) string {
	switch {
	case s.Verb != "":
		return fmt.Sprintf("%s: %s: %s", s.State, s.Verb, s.Message)
	case !s.Synced && s.Held:
		return "starting: the first list waits until what it has found so far is published"
	case !s.Synced:
		return "starting: the first list is under way"
	case s.Held:
		return fmt.Sprintf("%s: held until what was taken so far is published: %d objects", s.State, s.Objects)
	}
	return fmt.Sprintf("%s: %d objects", s.State, s.Objects)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Status is what /statusz shows of the bridge. The resources' position is a resourceVersion.
type Status struct {
	Ready     bool             `json:"ready"`
	Checks    []Check          `json:"-"`
	Leader    *LeaderStatus    `json:"leader,omitempty"`
	Epoch     uint64           `json:"epoch"`
	Known     int              `json:"knownObjects"`
	Pending   PendingStatus    `json:"pending"`
	Trouble   *TroubleStatus   `json:"trouble,omitempty"`
	Resources []ResourceStatus `json:"resources"`
	Resync    *ResyncProgress  `json:"resync,omitempty"` // the present one on request, or the last
	Missing   []string         `json:"missing,omitempty"`
	Unknown   []string         `json:"unknown,omitempty"` // selected, in an API group that cannot be discovered
}

// PendingStatus counts changes that are accepted and not done.
type PendingStatus struct {
	Messages int64 `json:"messages"`
	Bytes    int64 `json:"bytes"`
}

// TroubleStatus is why changes cannot be published at the moment.
type TroubleStatus struct {
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Since   time.Time `json:"since"`
}

// ResourceStatus is the state of one selected resource.
type ResourceStatus struct {
	Resource string `json:"resource"`
	Version  string `json:"version"`
	State    string `json:"state"`
	Synced   bool   `json:"synced"`
	// Held says that the broker does not take what the API server has to tell, so that it is left there.
	Held     bool   `json:"held"`
	Objects  int    `json:"objects"`
	Position string `json:"position,omitempty"`
	Verb     string `json:"verb,omitempty"`
	Message  string `json:"message,omitempty"`
	// Watermark is the version up to which the stream says that it has every change; Written is when it was told so.
	Watermark string     `json:"watermark,omitempty"`
	Written   *time.Time `json:"watermarkTime,omitempty"`
}

// Status returns the state of everything.
func (b *Bridge) Status() Status {
	b.mu.Lock()
	source, p, positions := b.source, b.publisher, b.positions
	out := Status{Leader: b.leaderStatus(), Epoch: b.resumed.Epoch, Known: b.resumed.Subjects, Resources: []ResourceStatus{}}
	b.mu.Unlock()
	out.Resync = b.resyncs.status()
	out.Checks = b.Ready()
	out.Ready = true
	for _, c := range out.Checks {
		out.Ready = out.Ready && c.OK
	}
	if p != nil {
		out.Pending.Messages, out.Pending.Bytes = p.Pending()
		if t, ok := p.Trouble(); ok {
			out.Trouble = &TroubleStatus{Reason: t.Reason, Message: t.Message, Since: t.Since}
		}
	}
	if source == nil {
		return out
	}
	overview := source.Overview()
	watermarks := positions.watermarks()
	for _, r := range overview.Resources {
		status := ResourceStatus{
			Resource: r.Resource.String(), Version: r.Version, State: string(r.State), Synced: r.Synced, Held: r.Held,
			Objects: r.Objects, Position: r.Position, Verb: r.Verb, Message: r.Message,
		}
		if w := watermarks[r.Resource]; w.Version != "" {
			status.Watermark, status.Written = w.Version, &w.Time
		}
		out.Resources = append(out.Resources, status)
	}
	out.Missing = overview.Missing
	for _, u := range overview.Unknown {
		out.Unknown = append(out.Unknown, u.Pattern)
	}
	return out
}

// Pending returns how many changes are accepted and not done, and the size of their objects in bytes.
func (b *Bridge) Pending() (messages, bytes int64) {
	b.mu.Lock()
	p := b.publisher
	b.mu.Unlock()
	if p == nil {
		return 0, 0
	}
	return p.Pending()
}

// Parked returns how many objects cannot be published.
func (b *Bridge) Parked() int {
	b.mu.Lock()
	p := b.publisher
	b.mu.Unlock()
	if p == nil {
		return 0
	}
	return len(p.Parked())
}

// Resources returns the state of each selected resource.
func (b *Bridge) Resources() []informer.ResourceStatus {
	b.mu.Lock()
	source := b.source
	b.mu.Unlock()
	if source == nil {
		return nil
	}
	return source.Overview().Resources
}

// Watermarks returns the last watermark of each resource.
func (b *Bridge) Watermarks() map[schema.GroupResource]WatermarkStatus {
	b.mu.Lock()
	positions := b.positions
	b.mu.Unlock()
	if positions == nil {
		return nil
	}
	return positions.watermarks()
}

// Connected reports whether there is a connection to NATS.
func (b *Bridge) Connected() bool { return b.options.Broker.Err() == nil }

// Leader reports whether this process is the one that publishes.
func (b *Bridge) Leader() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.publisher != nil && !b.fenced && b.leads()
}

func newBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 10 * time.Second}
}

// pause waits for the duration; false if the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
