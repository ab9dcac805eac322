package bridge

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/checkpoint"
	"github.com/deltabridge/deltabridge/internal/informer"
	"github.com/deltabridge/deltabridge/internal/message"
	"github.com/deltabridge/deltabridge/internal/publisher"
)

// Checkpoint is what the stream holds of the cluster: the objects, and the watermark of each resource.
type Checkpoint interface {
	// Resources returns the resources of which there is an object.
	Resources() []schema.GroupResource
	// Objects returns the resource's objects that are there according to the last messages on their subjects.
	Objects(gr schema.GroupResource) []informer.Known
	// Stored returns what the last message on an object's subject says; false if there is none.
	Stored(ref change.ObjectRef) (change.Stored, bool)
	// Subjects returns how many objects of the resource the stream knows, deleted ones included.
	Subjects(gr schema.GroupResource) int
	// Watermark returns the resource's last watermark; version and scope are empty if there is none that can be read. void
	// says in a word why its version says nothing of the cluster as it is, empty if it does.
	Watermark(gr schema.GroupResource) (w message.Watermark, void string)
	// Append writes a watermark and blocks until it is stored. The error wraps publisher.ErrFenced if another writer has
	// taken over.
	Append(ctx context.Context, w message.Watermark) error
}

// positions follows up to which version each resource is published, and writes it into the stream. It is the Feeds of a
// session's informers.
type positions struct {
	checkpoint Checkpoint
	scope      checkpoint.Scope
	clusterUID string
	take       func(*change.Change)      // hands a change to the publisher
	repeat     func(*change.Change) bool // hands a repetition to the publisher, unless changes wait there
	stop       context.CancelCauseFunc
	// stuck reports whether all that is under way may be objects that cannot be published for reasons of their own.
	stuck func() bool
	log   *slog.Logger

	wake chan struct{} // a position is to be written at once

	mu        sync.Mutex
	resources map[schema.GroupResource]*position
}

// position is how far a resource is published.
type position struct {
	gr       schema.GroupResource
	trackers []*checkpoint.Tracker // one for each informer
	// urgent says that the next version is to be written as soon as it is reached: the first one, and after a list.
	urgent atomic.Bool
	// refused says that it was logged that the watermark's subject is not ours to write on. Only the writer uses it.
	refused bool
	// failing says that the last watermark could not be written, and that this was logged. Only the writer uses it.
	failing bool

	mu      sync.Mutex
	gap     change.Gap // the last one that a list left
	written string     // version of the last watermark
	at      time.Time  // when it was written
}

// WatermarkStatus is a resource's last watermark in the stream.
type WatermarkStatus struct {
	Version string
	Time    time.Time
}

var _ informer.Feeds = (*positions)(nil)

// reopenPause is how often it is looked whether what a resource's former informers took is done.
const reopenPause = 100 * time.Millisecond

// parkedPatience is how long a resource that starts again waits for what is under way while objects are set aside because
// they cannot be published; those may never be done.
const parkedPatience = time.Minute

// Open implements informer.Feeds.
func (p *positions) Open(ctx context.Context, gr schema.GroupResource, n int) (informer.Origin, []informer.Feed, error) {
	p.mu.Lock()
	former := p.resources[gr]
	p.mu.Unlock()
	// What is under way is not in the ledger yet. A list that is compared with it would miss that it needs undoing.
	begin := time.Now()
	for former != nil && former.waiting() {
		if time.Since(begin) > parkedPatience && p.stuck() {
			p.log.Warn("resource starts although an object of it or another cannot be published", "resource", gr.String())
			break
		}
		if !pause(ctx, reopenPause) {
			return informer.Origin{}, nil, ctx.Err()
		}
	}
	origin := p.origin(gr, former)
	next := &position{gr: gr}
	next.urgent.Store(true)
	feeds := make([]informer.Feed, 0, n)
	for range n {
		tracker := &checkpoint.Tracker{}
		next.trackers = append(next.trackers, tracker)
		feeds = append(feeds, &feed{positions: p, position: next, tracker: tracker})
	}
	p.mu.Lock()
	p.resources[gr] = next
	p.mu.Unlock()
	level := slog.LevelDebug
	if origin.Reason != "" && origin.Since != "" {
		level = slog.LevelInfo
	}
	p.log.Log(ctx, level, "resource starts", "resource", gr.String(), "knownObjects", len(origin.Objects),
		"resumeAt", origin.Version, "compareBecause", origin.Reason)
	return origin, feeds, nil
}

// origin decides what a resource's informers begin with.
func (p *positions) origin(gr schema.GroupResource, former *position) informer.Origin {
	origin := informer.Origin{Objects: p.checkpoint.Objects(gr)}
	if former != nil {
		if version := former.version(); compares(version) {
			origin.Version = version
			return origin
		}
	}
	w, void := p.checkpoint.Watermark(gr)
	origin.Since = w.RV
	switch {
	case w.RV == "" && void == "" && len(origin.Objects) == 0:
		origin.Reason = "first"
		return origin
	case void != "":
		origin.Reason, origin.OtherHistory = void, w.RV != ""
	case w.RV == "":
		origin.Reason = "no-watermark"
	case w.Scope != p.scope.String():
		origin.Reason = "scope"
		if scope, err := checkpoint.ParseScope(w.Scope); err == nil {
			origin.Entered = func(namespace string) bool { return !scope.Selects(namespace) }
		}
	case w.Subjects > p.checkpoint.Subjects(gr):
		origin.Reason = "forgotten"
		p.log.Warn("the stream has forgotten objects, what it has lost is published again",
			"resource", gr.String(), "atLeast", w.Subjects-p.checkpoint.Subjects(gr))
	case !compares(w.RV):
		origin.Reason = "not-comparable"
	default:
		origin.Version, origin.Since = w.RV, ""
	}
	if origin.Since == "" && origin.Version == "" {
		origin.Since = "0"
	}
	return origin
}

// compares reports whether a version can be compared with others of its resource; the empty one cannot.
func compares(version string) bool {
	_, err := resourceversion.CompareResourceVersion(version, version)
	return err == nil
}

// Resources implements informer.Feeds.
func (p *positions) Resources() []schema.GroupResource { return p.checkpoint.Resources() }

// Rewound implements informer.Feeds: the session ends, and the next one compares everything.
func (p *positions) Rewound(gr schema.GroupResource, published, served string) {
	p.log.Error("the API server is behind what was published: the cluster was restored from a backup; everything is compared anew",
		"resource", gr.String(), "published", published, "served", served)
	p.stop(errRewound)
}

// feed is informer.Feed for one informer.
type feed struct {
	positions *positions
	position  *position
	tracker   *checkpoint.Tracker
}

var _ informer.Feed = (*feed)(nil)

// Take implements informer.Feed.
func (f *feed) Take(c *change.Change, moves bool) {
	version := ""
	if moves {
		version = c.RV
	} else {
		f.position.urgent.Store(true)
	}
	ticket, returnCredit := f.tracker.Begin(version), c.Done
	c.Done = func() {
		if f.tracker.Done(ticket) {
			f.positions.moved(f.position)
		}
		if returnCredit != nil {
			returnCredit()
		}
	}
	f.positions.take(c)
}

// Mark implements informer.Feed.
func (f *feed) Mark(version string, gap change.Gap) {
	if version == "" { // of an API without versions
		return
	}
	if !gap.IsZero() {
		f.position.mu.Lock()
		f.position.gap = gap
		f.position.mu.Unlock()
	}
	f.tracker.Mark(version)
	f.positions.moved(f.position)
}

// Repeat implements informer.Feed. What is no change has no part in the position.
func (f *feed) Repeat(c *change.Change) bool { return f.positions.repeat(c) }

// moved wakes the writer for a position that is to be written at once. It does not block.
func (p *positions) moved(of *position) {
	if !of.urgent.Load() {
		return
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// waiting reports whether anything that was taken is not done.
func (p *position) waiting() bool {
	return slices.ContainsFunc(p.trackers, (*checkpoint.Tracker).Waiting)
}

// version returns the version up to which everything is published, empty if it is not known: the least of the trackers'.
func (p *position) version() string {
	least := ""
	for i, tracker := range p.trackers {
		version := tracker.Position()
		if !compares(version) {
			return ""
		}
		if order, _ := resourceversion.CompareResourceVersion(version, least); i == 0 || order < 0 {
			least = version
		}
	}
	return least
}

// run writes watermarks until the context ends: every interval those that have moved, and at once those that are urgent.
func (p *positions) run(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			p.write(ctx, false)
		case <-p.wake:
			p.write(ctx, true)
		}
	}
}

// write writes the positions that have moved, or only the urgent ones of them. Where the broker does not answer, the others
// would fail alike, and all are tried again.
func (p *positions) write(ctx context.Context, urgent bool) {
	p.mu.Lock()
	all := make([]*position, 0, len(p.resources))
	for _, of := range p.resources {
		all = append(all, of)
	}
	p.mu.Unlock()
	slices.SortFunc(all, func(a, b *position) int { return strings.Compare(a.gr.String(), b.gr.String()) })
	for _, of := range all {
		if urgent && !of.urgent.Load() {
			continue
		}
		err := p.writeOne(ctx, of)
		switch {
		case errors.Is(err, publisher.ErrForeign):
			if !of.refused {
				p.log.Error("watermark is not written, this resource is compared anew at each start", "resource", of.gr.String(), "error", err)
			}
			of.refused = true
			continue
		case errors.Is(err, publisher.ErrFenced):
			p.stop(errFenced)
		}
		of.note(ctx, p.log, err)
		if err != nil && (ctx.Err() != nil || errors.Is(err, publisher.ErrNotConnected) || errors.Is(err, context.DeadlineExceeded)) {
			return
		}
	}
}

// writeOne writes a resource's position if it has moved since it was last written.
func (p *positions) writeOne(ctx context.Context, of *position) error {
	version := of.version()
	of.mu.Lock()
	w := message.Watermark{
		ClusterUID: p.clusterUID, Group: of.gr.Group, Resource: of.gr.Resource, Scope: p.scope.String(), RV: version,
		Subjects: p.checkpoint.Subjects(of.gr),
	}
	if order, err := resourceversion.CompareResourceVersion(version, of.gap.To); err == nil && order >= 0 {
		w.Gap = of.gap.String()
	}
	written := of.written
	of.mu.Unlock()
	if version == "" || version == written {
		return nil
	}
	if err := p.checkpoint.Append(ctx, w); err != nil {
		return err
	}
	of.urgent.Store(false)
	of.mu.Lock()
	defer of.mu.Unlock()
	of.written, of.at = version, time.Now()
	return nil
}

// note logs that the resource's watermark cannot be written, and that it can be again, once each.
func (p *position) note(ctx context.Context, log *slog.Logger, err error) {
	switch {
	case err != nil && !p.failing && ctx.Err() == nil:
		log.Warn("watermark cannot be written, trying again", "resource", p.gr.String(), "error", err)
		p.failing = true
	case err == nil && p.failing:
		log.Info("watermark is written again", "resource", p.gr.String())
		p.failing = false
	}
}

// watermarks returns the last watermark of each resource.
func (p *positions) watermarks() map[schema.GroupResource]WatermarkStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[schema.GroupResource]WatermarkStatus, len(p.resources))
	for gr, of := range p.resources {
		of.mu.Lock()
		out[gr] = WatermarkStatus{Version: of.written, Time: of.at}
		of.mu.Unlock()
	}
	return out
}
