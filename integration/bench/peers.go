package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// peer is this program in another role, in a process of its own.
type peer struct {
	cmd *exec.Cmd
	url string
}

// startPeer starts the role and waits until it says where it listens.
func startPeer(role string) (*peer, error) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "BENCH_ROLE="+role)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err = cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the %s peer: %w", role, err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the %s peer does not say where it listens: %w", role, err), cmd.Process.Kill())
	}
	return &peer{cmd: cmd, url: strings.TrimSpace(line)}, nil
}

func (p *peer) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	_ = p.cmd.Wait()
}

// serve plays a role until a signal ends it.
func serve(role string) {
	if err := serveRole(role); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", role+":", err)
		os.Exit(1)
	}
}

func serveRole(role string) error {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, os.Interrupt)
	switch role {
	case "nats":
		dir, err := os.MkdirTemp("", "deltabridge-bench-nats-")
		if err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		n, err := harness.NewNATS(dir)
		if err != nil {
			return err
		}
		defer n.Stop()
		fmt.Println(n.URL())
		<-stop
		return nil
	case "watch":
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		fmt.Println("http://" + l.Addr().String())
		failed := make(chan error, 1)
		go func() { failed <- http.Serve(l, http.HandlerFunc(playWatch)) }()
		select {
		case err := <-failed:
			return err
		case <-stop:
			return nil
		}
	}
	return fmt.Errorf("no role %q", role)
}

// playWatch answers a list with nothing and a watch with events of the payload that the path names, as many as the
// user agent says: "bench/<n>".
func playWatch(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	var p payload
	for _, candidate := range payloads {
		if strings.HasSuffix(r.URL.Path, "/"+candidate.resource.GVR.Resource) {
			p = candidate
		}
	}
	if p.name == "" {
		http.NotFound(w, r)
		return
	}
	if r.URL.Query().Get("watch") == "" {
		fmt.Fprintf(w, `{"kind":%q,"apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}`, p.resource.Kind+"List")
		return
	}
	if r.URL.Query().Get("sendInitialEvents") != "" {
		// What a server without streaming lists says; both sides then list.
		w.WriteHeader(http.StatusUnprocessableEntity)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`)
		return
	}
	_, count, _ := strings.Cut(r.UserAgent(), "bench/")
	n, err := strconv.Atoi(count)
	if err != nil {
		http.Error(w, "user agent must be bench/<events>", http.StatusBadRequest)
		return
	}
	frames := p.frames()
	buffered := bufio.NewWriterSize(w, 256<<10)
	for i := range n {
		f := frames[i%len(frames)]
		copy(f.bytes[f.rv:], fmt.Sprintf("%010d", 1000000000+i)) // versions rise
		if _, err := buffered.Write(f.bytes); err != nil {
			return
		}
	}
	if buffered.Flush() == nil {
		w.(http.Flusher).Flush()
		<-r.Context().Done() // a watch has no end
	}
}

// frame is a watch event whose resourceVersion, ten digits at rv, is filled in when it is sent.
type frame struct {
	bytes []byte
	rv    int
}

const versionHole = "0000000000"

func newFrame(typ string, object []byte) frame {
	b := append([]byte(`{"type":"`+typ+`","object":`), object...)
	b = append(b, "}\n"...)
	return frame{bytes: b, rv: bytes.Index(b, []byte(versionHole))}
}
