package harness

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
)

// Watch is one watch that passed the proxy, or passes it.
type Watch struct {
	Path            string
	ResourceVersion string // where it was asked to begin
	InitialEvents   bool   // whether it was asked for the state first
	Events          int    // how many events the client got, bookmarks not counted
	LastVersion     string // version of the last event or bookmark that the client got
	Closed          bool
}

// corruptFrame is what a client gets in an event's place: a line that is cut in the middle of a string.
const corruptFrame = `{"type":"MODIFIED","object":{"kind":"Broken","metadata":{"name":"x` + "\n"

// Watches returns the watches of a path so far, in the order in which they began.
func (p *APIProxy) Watches(path string) []Watch {
	p.mu.Lock()
	defer p.mu.Unlock()
	var watches []Watch
	for _, w := range p.watches {
		if w.Path == path {
			watches = append(watches, *w)
		}
	}
	return watches
}

// wrapWatch puts the script between the API server's events and the client. Only JSON is read: the bridge asks for
// nothing else.
func (p *APIProxy) wrapWatch(response *http.Response) error {
	request := response.Request
	query := request.URL.Query()
	if watch := query.Get("watch"); watch != "true" && watch != "1" || response.StatusCode != http.StatusOK ||
		!strings.HasPrefix(response.Header.Get("Content-Type"), "application/json") {
		return nil
	}
	w := &Watch{
		Path:            request.URL.Path,
		ResourceVersion: query.Get("resourceVersion"),
		InitialEvents:   query.Get("sendInitialEvents") == "true",
	}
	p.mu.Lock()
	p.watches = append(p.watches, w)
	p.mu.Unlock()
	response.Body = &watchBody{
		ctx: request.Context(), proxy: p, watch: w, upstream: response.Body, lines: bufio.NewReaderSize(response.Body, 64<<10),
	}
	return nil
}

// watchBody reads a watch line by line and does what the script says at each line's end.
type watchBody struct {
	ctx      context.Context
	proxy    *APIProxy
	watch    *Watch
	upstream io.Closer
	lines    *bufio.Reader
	rest     []byte // of the line that the client is being sent
}

func (b *watchBody) Read(to []byte) (int, error) {
	if len(b.rest) == 0 {
		line, err := b.next()
		if err != nil {
			return 0, err
		}
		b.rest = line
	}
	n := copy(to, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// next returns the next line that the client gets. It is io.EOF where the script closes the watch, which the client
// sees as an orderly end.
func (b *watchBody) next() ([]byte, error) {
	if b.ended() {
		return nil, io.EOF
	}
	line, err := b.lines.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	if err := b.awaitLight(); err != nil {
		return nil, err
	}
	if b.ended() {
		return nil, io.EOF
	}
	return b.pass(line), nil
}

// ended reports whether the watch has had as many events as the script allows.
func (b *watchBody) ended() bool {
	b.proxy.mu.Lock()
	defer b.proxy.mu.Unlock()
	return b.proxy.closeAfter > 0 && b.watch.Events >= b.proxy.closeAfter
}

// awaitLight waits while watches are black holes.
func (b *watchBody) awaitLight() error {
	for {
		b.proxy.mu.Lock()
		dark, changed, closed := b.proxy.blackHole, b.proxy.changed, b.proxy.closed
		b.proxy.mu.Unlock()
		if closed {
			return errors.New("the proxy was closed")
		}
		if !dark {
			return nil
		}
		select {
		case <-changed:
		case <-b.ctx.Done():
			return b.ctx.Err()
		}
	}
}

// pass accounts for a line and returns it, or what the script puts in its place.
func (b *watchBody) pass(line []byte) []byte {
	var event struct {
		Type   string `json:"type"`
		Object struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
			} `json:"metadata"`
		} `json:"object"`
	}
	// A line that is not an event is passed like any other, and counts as one.
	_ = json.Unmarshal(line, &event)
	b.proxy.mu.Lock()
	defer b.proxy.mu.Unlock()
	bookmark := event.Type == "BOOKMARK"
	if !bookmark && b.proxy.corrupt[b.watch.Path] > 0 {
		b.proxy.corrupt[b.watch.Path]--
		return []byte(corruptFrame)
	}
	if !bookmark {
		b.watch.Events++
	}
	if event.Object.Metadata.ResourceVersion != "" {
		b.watch.LastVersion = event.Object.Metadata.ResourceVersion
	}
	return line
}

// Close is called when the client or the API server ended the watch.
func (b *watchBody) Close() error {
	b.proxy.mu.Lock()
	b.watch.Closed = true
	b.proxy.mu.Unlock()
	return b.upstream.Close()
}
