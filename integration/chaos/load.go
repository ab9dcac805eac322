package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// clock counts the load's steps, by which faults are timed.
type clock struct {
	mu      sync.Mutex
	steps   int
	ended   bool
	changed chan struct{} // closed and replaced with each step
}

func newClock() *clock { return &clock{changed: make(chan struct{})} }

// tick counts a step.
func (c *clock) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps++
	close(c.changed)
	c.changed = make(chan struct{})
}

// end lets nobody wait any more.
func (c *clock) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.ended {
		c.ended = true
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

func (c *clock) now() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.steps
}

// wait waits for so many more steps. It returns false when the load ended before that.
func (c *clock) wait(steps int) bool {
	until := c.now() + steps
	for {
		c.mu.Lock()
		now, ended, changed := c.steps, c.ended, c.changed
		c.mu.Unlock()
		if now >= until || ended {
			return !ended
		}
		<-changed
	}
}

// load changes objects as the plan says, against the API server itself, which no proxy of the bridge's is in front of.
type load struct {
	client    dynamic.Interface
	namespace string
	clock     *clock

	mu sync.Mutex
	// acknowledged are the versions that the API server gave as answers, as "<uid>/<rv>".
	acknowledged []string
	counts       map[Action]int
}

// run does the plan's steps, the same number by each worker.
func (l *load) run(ctx context.Context, plan Plan) error {
	defer l.clock.end()
	errs := make(chan error, workers)
	var running sync.WaitGroup
	for worker := range workers {
		next := plan.Script(worker)
		running.Go(func() {
			for range plan.Steps / workers {
				l.clock.tick()
				step := next()
				if err := l.do(ctx, step); err != nil {
					errs <- fmt.Errorf("%s: %w", step, err)
					return
				}
				select {
				case <-time.After(step.Pause):
				case <-ctx.Done():
					errs <- ctx.Err()
					return
				}
			}
		})
	}
	running.Wait()
	close(errs)
	return <-errs
}

// do does a step, over and over until it is done.
func (l *load) do(ctx context.Context, step Step) error {
	l.mu.Lock()
	l.counts[step.Action]++
	l.mu.Unlock()
	switch step.Action {
	case Create:
		return l.insist(ctx, step, l.create)
	case Update:
		return l.insist(ctx, step, l.update)
	case Delete:
		return l.insist(ctx, step, l.delete)
	default:
		if err := l.insist(ctx, step, l.delete); err != nil {
			return err
		}
		return l.insist(ctx, step, l.create)
	}
}

// insist tries until the API server takes it: it may be restarting.
func (l *load) insist(ctx context.Context, step Step, try func(context.Context, Step) error) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, 20*time.Second)
		err := try(attempt, step)
		cancel()
		if err == nil {
			return nil
		}
		if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
			return err // it will never do
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (l *load) objects(step Step) dynamic.ResourceInterface {
	return l.client.Resource(resources[step.Resource].GroupVersionResource).Namespace(l.namespace)
}

func (l *load) create(ctx context.Context, step Step) error {
	u := resources[step.Resource].object(l.namespace, step.Name, step.Value, step.Size)
	created, err := l.objects(step).Create(ctx, u, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // by an attempt whose answer was lost
	}
	return l.note(created, err)
}

func (l *load) update(ctx context.Context, step Step) error {
	fields := resources[step.Resource].spec(step.Value, strings.Repeat("x", step.Size))
	var subresources []string
	if step.Status {
		subresources = []string{"status"}
		fields = map[string]any{"status": l.status(step)}
	}
	patch, err := json.Marshal(fields)
	if err != nil {
		return fmt.Errorf("encode a patch: %w", err)
	}
	updated, err := l.objects(step).Patch(ctx, step.Name, types.MergePatchType, patch, metav1.PatchOptions{}, subresources...)
	return l.note(updated, err)
}

// status returns a status that is unlike the one before.
func (l *load) status(step Step) map[string]any {
	if resources[step.Resource].Group == widgetGroup {
		return map[string]any{"value": step.Value}
	}
	return map[string]any{"conditions": []any{map[string]any{
		"type": "Progressing", "status": "True", "message": step.Value,
	}}}
}

func (l *load) delete(ctx context.Context, step Step) error {
	background := metav1.DeletePropagationBackground
	err := l.objects(step).Delete(ctx, step.Name, metav1.DeleteOptions{PropagationPolicy: &background})
	if apierrors.IsNotFound(err) {
		return nil // by an attempt whose answer was lost
	}
	return err
}

func (l *load) note(u *unstructured.Unstructured, err error) error {
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acknowledged = append(l.acknowledged, string(u.GetUID())+"/"+u.GetResourceVersion())
	return nil
}
