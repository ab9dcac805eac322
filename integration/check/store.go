package check

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// Store tells where the API server keeps its objects: an etcd with a JSON gateway. The API server must store JSON
// (--storage-media-type=application/json).
type Store struct {
	URL string
	// Prefixes are the keys below which the objects of each resource are, such as "/registry/services/specs/".
	Prefixes map[schema.GroupVersionResource]string
}

// registry is where all objects are, and the key after them.
const (
	registry      = "/registry/"
	afterRegistry = "/registry0"
)

// RecordStore is [Record] by a watch of the store beneath the API server. A watch of the API server itself would be cut
// with every restart of it and, as its watch cache is empty then, could not be resumed where it was: it would miss just
// those versions that the recording is about. The store's watch misses none, whatever becomes of the API server; if the
// store has forgotten a version before it could be read, the recording is broken and says so. Client reads the cluster's
// state through the API server.
func RecordStore(t testing.TB, client dynamic.Interface, selection Selection, store Store) *Recording {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := newRecording(client, selection, cancel)
	w := &storeWatch{store: store, recording: r}
	if err := w.begin(ctx); err != nil {
		cancel()
		t.Fatalf("begin to record the store: %v", err)
	}
	r.done.Go(func() { w.run(ctx) })
	t.Cleanup(r.Stop)
	return r
}

// storeWatch records what the store tells.
type storeWatch struct {
	store     Store
	recording *Recording
	revision  int64 // the last one that was recorded
}

// keyValue is an object in the store.
type keyValue struct {
	Key      []byte `json:"key"`
	Value    []byte `json:"value"`
	Create   string `json:"create_revision"`
	Revision string `json:"mod_revision"`
}

type storeHeader struct {
	Revision string `json:"revision"`
}

// begin notes what there is.
func (w *storeWatch) begin(ctx context.Context) error {
	response, err := w.ask(ctx, "/v3/kv/range", map[string]any{
		"key": []byte(registry), "range_end": []byte(afterRegistry),
	})
	if err != nil {
		return err
	}
	defer response.Close()
	var all struct {
		Header storeHeader `json:"header"`
		Values []keyValue  `json:"kvs"`
	}
	if err = json.NewDecoder(response).Decode(&all); err != nil {
		return fmt.Errorf("decode what is in the store: %w", err)
	}
	if w.revision, err = strconv.ParseInt(all.Header.Revision, 10, 64); err != nil {
		return fmt.Errorf("revision of the store: %w", err)
	}
	for resource := range w.store.Prefixes {
		name := resource.GroupResource().String()
		w.recording.begin[name], w.recording.end[name] = all.Header.Revision, all.Header.Revision
	}
	for _, value := range all.Values {
		if resource, ok := w.resource(value.Key); ok {
			object, b, err := decodeStored(resource, value.Value, value.Revision)
			if err != nil {
				return err
			}
			w.recording.state[object] = b.uid + "/" + b.version
		}
	}
	return nil
}

func (w *storeWatch) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := w.watch(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errWatchEnded):
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		default:
			w.recording.breakOff(fmt.Errorf("record the store from revision %d: %w", w.revision, err))
			return
		}
	}
}

// storeEvents is one line of the store's watch.
type storeEvents struct {
	Result struct {
		Header   storeHeader `json:"header"`
		Canceled bool        `json:"canceled"`
		Reason   string      `json:"cancel_reason"`
		Compact  string      `json:"compact_revision"`
		Events   []struct {
			Type     string   `json:"type"`
			Value    keyValue `json:"kv"`
			Previous keyValue `json:"prev_kv"`
		} `json:"events"`
	} `json:"result"`
}

// watch records until the watch ends.
func (w *storeWatch) watch(ctx context.Context) error {
	response, err := w.ask(ctx, "/v3/watch", map[string]any{"create_request": map[string]any{
		"key": []byte(registry), "range_end": []byte(afterRegistry),
		"start_revision": strconv.FormatInt(w.revision+1, 10), "prev_kv": true,
	}})
	if err != nil {
		return fmt.Errorf("%w: %w", errWatchEnded, err)
	}
	defer response.Close()
	for decoder := json.NewDecoder(response); ; {
		var line storeEvents
		if err := decoder.Decode(&line); err != nil {
			return fmt.Errorf("%w: %w", errWatchEnded, err)
		}
		if result := line.Result; result.Canceled {
			return fmt.Errorf("the store ends the watch (%s); it has forgotten what was before %s", result.Reason, result.Compact)
		}
		for _, event := range line.Result.Events {
			if err := w.note(event.Type == "DELETE", event.Value, event.Previous); err != nil {
				return err
			}
		}
	}
}

// note records one event.
func (w *storeWatch) note(deleted bool, value, previous keyValue) error {
	revision, err := strconv.ParseInt(value.Revision, 10, 64)
	if err != nil {
		return fmt.Errorf("revision of %s: %w", value.Key, err)
	}
	if resource, ok := w.resource(value.Key); ok {
		event, raw := watch.Modified, value.Value
		switch {
		case deleted: // the last state, under the deletion's own version, as the API server tells it
			event, raw = watch.Deleted, previous.Value
		case value.Create == value.Revision:
			event = watch.Added
		}
		u, err := stored(raw, value.Revision)
		if err != nil {
			return fmt.Errorf("decode %s: %w", value.Key, err)
		}
		if err := w.recording.note(resource, event, u); err != nil {
			return err
		}
	}
	w.revision = revision
	w.recording.reached(value.Revision)
	return nil
}

func (w *storeWatch) resource(key []byte) (schema.GroupVersionResource, bool) {
	for resource, prefix := range w.store.Prefixes {
		if strings.HasPrefix(string(key), prefix) {
			return resource, true
		}
	}
	return schema.GroupVersionResource{}, false
}

func (w *storeWatch) ask(ctx context.Context, path string, question any) (io.ReadCloser, error) {
	body, err := json.Marshal(question)
	if err != nil {
		return nil, fmt.Errorf("encode a request to the store: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.store.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make a request to the store: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask the store: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		text, readErr := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		response.Body.Close()
		return nil, errors.Join(fmt.Errorf("the store answers %s: %s", response.Status, text), readErr)
	}
	return response.Body, nil
}

// stored decodes an object as the store has it: without its version, which is the store's revision.
func stored(raw []byte, revision string) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(raw); err != nil {
		return nil, err
	}
	u.SetResourceVersion(revision)
	return u, nil
}

func decodeStored(resource schema.GroupVersionResource, raw []byte, revision string) (Object, *body, error) {
	u, err := stored(raw, revision)
	if err != nil {
		return Object{}, nil, fmt.Errorf("decode a stored object of %s: %w", resource.GroupResource(), err)
	}
	return decode(resource, u)
}
