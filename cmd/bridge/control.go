package main

import (
	"context"
	"errors"
	"log/slog"

	"github.com/nats-io/nats.go"

	"github.com/deltabridge/deltabridge/internal/bridge"
	"github.com/deltabridge/deltabridge/internal/config"
	"github.com/deltabridge/deltabridge/internal/control"
	"github.com/deltabridge/deltabridge/internal/publisher"
)

// newControl returns the control service, nil if the configuration has none.
func newControl(c *config.Config, conn *publisher.Conn, s *state, log *slog.Logger) *control.Service {
	if !c.Control {
		return nil
	}
	return control.New(control.Options{
		Cluster: c.Cluster, Version: version, Bridge: &controlled{state: s}, Log: log,
		Conn: func() *nats.Conn { return natsConn(conn) },
	})
}

// natsConn returns the present connection, nil while there is none.
func natsConn(conn *publisher.Conn) *nats.Conn {
	js, err := conn.JetStream()
	if err != nil {
		return nil
	}
	return js.Conn()
}

// controlled is what the control service asks.
type controlled struct{ *state }

var _ control.Bridge = (*controlled)(nil)

// Publishing reports whether this process publishes.
func (c *controlled) Publishing() bool { return c.bridge.Leader() }

// Resync publishes the state of what is asked for again.
func (c *controlled) Resync(ctx context.Context, r control.Request, report func(control.Progress)) (control.Progress, error) {
	request := bridge.ResyncRequest{Resources: r.Resources, Namespace: r.Namespace, Selector: r.Selector}
	done, err := c.bridge.Resync(ctx, request, func(p bridge.ResyncProgress) { report(progress(p)) })
	for cause, code := range map[error]string{
		bridge.ErrBadRequest: control.CodeBadRequest, bridge.ErrResyncRunning: control.CodeConflict,
		bridge.ErrNotPublishing: control.CodeUnavailable,
	} {
		if errors.Is(err, cause) {
			return progress(done), &control.Error{Code: code, Description: err.Error()}
		}
	}
	return progress(done), err
}

func progress(p bridge.ResyncProgress) control.Progress {
	return control.Progress{
		Done: p.Done, Resource: p.Resource, Total: p.Total, Synced: p.Synced, Repaired: p.Repaired, Deleted: p.Deleted,
		Overtaken: p.Overtaken, Started: p.Started, Error: p.Error,
	}
}
