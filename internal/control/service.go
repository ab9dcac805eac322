package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// Bridge is what the service asks.
type Bridge interface {
	// Publishing reports whether this process is the one that publishes. Only then it answers resync requests.
	Publishing() bool
	// Status returns what /statusz shows.
	Status() any
	// Resync does what is asked, and calls report now and then. It blocks until it is done. The error may be an *Error.
	Resync(ctx context.Context, request Request, report func(Progress)) (Progress, error)
}

// Options configure a Service.
type Options struct {
	Cluster string
	Version string // of the program
	// Conn returns the present connection, nil while there is none. Another one than before means that the former is
	// closed.
	Conn   func() *nats.Conn
	Bridge Bridge
	Log    *slog.Logger
}

// Service answers requests as long as it runs, on whichever connection there is.
type Service struct {
	options Options

	// Of the goroutine of Run.
	nc         *nats.Conn
	service    micro.Service
	publishing bool
	logged     string // why the service could not be registered, as it was logged

	resyncs sync.WaitGroup
}

// New returns a Service that answers when it runs.
func New(o Options) *Service { return &Service{options: o} }

// followPeriod is how often it is looked whether the connection or the role has changed.
const followPeriod = 200 * time.Millisecond

// Run registers the service, anew for each new connection and role, until the context ends. That also ends a resync that
// is under way. It returns when its goroutines have ended.
func (s *Service) Run(ctx context.Context) {
	defer s.resyncs.Wait()
	defer s.leave()
	ticker := time.NewTicker(followPeriod)
	defer ticker.Stop()
	for {
		s.follow(ctx)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// follow brings the registration in line with the connection and the role.
func (s *Service) follow(ctx context.Context) {
	nc, publishing := s.options.Conn(), s.options.Bridge.Publishing()
	if nc == nil || s.service != nil && s.nc == nc && s.publishing == publishing && !s.service.Stopped() {
		return // a client that reconnects by itself brings its subscriptions along
	}
	s.leave()
	service, err := s.register(ctx, nc, publishing)
	if err != nil {
		if err.Error() != s.logged {
			s.options.Log.Warn("control service cannot be registered, trying again", "error", err)
		}
		s.logged = err.Error()
		return
	}
	s.logged = ""
	s.nc, s.service, s.publishing = nc, service, publishing
}

// leave takes the service off its connection. Resyncs that are under way go on.
func (s *Service) leave() {
	if s.service != nil {
		_ = s.service.Stop() // of a closed connection there is nothing to take off
	}
	s.service = nil
}

// semver is what a micro service's version must look like.
var semver = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+$`)

// register adds the service to a connection. A bridge that does not publish has no resync endpoint: two replicas share a
// queue group, and a request is to reach the one that can do it.
func (s *Service) register(ctx context.Context, nc *nats.Conn, publishing bool) (micro.Service, error) {
	version := strings.TrimPrefix(s.options.Version, "v")
	if !semver.MatchString(version) {
		version = "0.0.0"
	}
	service, err := micro.AddService(nc, micro.Config{
		Name: serviceName, Version: version, Description: "publishes the changes of Kubernetes objects",
		Metadata: map[string]string{"cluster": s.options.Cluster, "version": s.options.Version},
	})
	if err != nil {
		return nil, err
	}
	err = service.AddEndpoint("status", micro.HandlerFunc(s.status), micro.WithEndpointSubject(StatusSubject(s.options.Cluster)))
	if err == nil && publishing {
		handler := micro.HandlerFunc(func(r micro.Request) { s.resync(ctx, r) })
		err = service.AddEndpoint("resync", handler, micro.WithEndpointSubject(ResyncSubject(s.options.Cluster)))
	}
	if err != nil {
		_ = service.Stop()
		return nil, err
	}
	return service, nil
}

// status answers a status request.
func (s *Service) status(r micro.Request) {
	if err := r.RespondJSON(s.options.Bridge.Status()); err != nil {
		s.failed(r, err)
	}
}

// failed answers with an error and takes note of it.
func (s *Service) failed(r micro.Request, err error) {
	s.options.Log.Warn("request cannot be answered", "subject", r.Subject(), "error", err)
	_ = r.Error(CodeFailed, line(err), nil) // who asked may be gone
}

// resync answers a resync request from a goroutine of its own: the endpoint must be free to refuse a second one.
func (s *Service) resync(ctx context.Context, r micro.Request) {
	request, err := parseRequest(r.Data())
	if err != nil {
		_ = r.Error(CodeBadRequest, line(err), nil)
		return
	}
	s.resyncs.Go(func() {
		done, err := s.options.Bridge.Resync(ctx, request, func(p Progress) { _ = r.RespondJSON(numbered(p)) })
		if err == nil {
			_ = r.RespondJSON(numbered(done))
			return
		}
		if ctx.Err() != nil {
			err = &Error{Code: CodeUnavailable, Description: "the bridge stops, the resync is not complete"}
		}
		code := CodeFailed
		if e := (*Error)(nil); errors.As(err, &e) {
			code = e.Code
		}
		body, _ := json.Marshal(numbered(done)) // of numbers and text: never fails
		_ = r.Error(code, line(err), body)
	})
}

func numbered(p Progress) Progress {
	p.Format = format
	return p
}

// line returns an error's text as it can stand in a header.
func line(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\r' || r == '\n' }), " ")
}
