// Package control is the bridge's NATS micro service: what a running bridge is asked over NATS, and how it is asked.
//
// The service is called deltabridge. Its endpoints are deltabridge.<cluster>.status, which answers with what /statusz
// shows, and deltabridge.<cluster>.resync, which takes a Request and answers with a stream of Progress. Errors are
// answered as those of any micro service: in the headers Nats-Service-Error and Nats-Service-Error-Code.
package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// serviceName is what the service is found by: `nats micro info deltabridge`.
const serviceName = "deltabridge"

// format is the version of requests and answers.
const format = 1

// StatusSubject returns where a cluster's bridge is asked for its status.
func StatusSubject(cluster string) string { return serviceName + "." + cluster + ".status" }

// ResyncSubject returns where a cluster's bridge is asked for a resync.
func ResyncSubject(cluster string) string { return serviceName + "." + cluster + ".resync" }

// Request asks for a resync. An empty one asks for everything that the bridge follows.
type Request struct {
	Format    int      `json:"format,omitempty"` // 1, or left out
	Resources []string `json:"resources,omitempty"`
	Namespace string   `json:"namespace,omitempty"`
	Selector  string   `json:"selector,omitempty"` // of labels, as in kubectl
}

// Progress is one answer to a Request. The last one is done; where something failed it comes as an error, with the
// counts as its body.
type Progress struct {
	Format    int       `json:"format"`
	Done      bool      `json:"done"`
	Resource  string    `json:"resource,omitempty"`
	Total     int       `json:"total"`
	Synced    int       `json:"synced"`
	Repaired  int       `json:"repaired"`
	Deleted   int       `json:"deleted"`
	Overtaken int       `json:"overtaken"`
	Started   time.Time `json:"started"`
	Error     string    `json:"error,omitempty"`
}

// Error is an error of the service, as its client meets it.
type Error struct {
	Code        string // CodeBadRequest, CodeConflict, CodeUnavailable or CodeFailed
	Description string // for a user
}

// The codes of an Error.
const (
	CodeBadRequest  = "400" // the request names what there is not
	CodeConflict    = "409" // a resync is running
	CodeFailed      = "500" // it failed, or a part of it
	CodeUnavailable = "503" // the bridge does not publish
)

// Error returns the description.
func (e *Error) Error() string { return e.Description }

// parseRequest reads a request; no bytes are one for everything. What it does not know is an error, not passed over: a
// misspelled field would ask for more than is meant.
func parseRequest(data []byte) (Request, error) {
	var r Request
	if len(data) == 0 {
		return r, nil
	}
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		return r, fmt.Errorf("the request is not understood: %w", err)
	}
	if decoder.More() {
		return r, errors.New("the request is not understood: more than one JSON value")
	}
	if r.Format != 0 && r.Format != format {
		return r, fmt.Errorf("the request has format %d, this bridge knows %d", r.Format, format)
	}
	return r, nil
}
