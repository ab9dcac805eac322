package harness

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// echo is a server that sends lines back.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				// How it ends is the client's to tell.
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return listener.Addr().String()
}

// ask sends a line on a connection and returns the answer.
func ask(conn net.Conn, patience time.Duration) (string, error) {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		return "", err
	}
	return bufio.NewReader(conn).ReadString('\n')
}

func dial(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestTCPProxy(t *testing.T) {
	p := StartTCPProxy(t, echo(t))
	conn := dial(t, p.Addr())
	require := func(conn net.Conn) {
		t.Helper()
		if line, err := ask(conn, Patience); err != nil || line != "hello\n" {
			t.Fatalf("got %q, %v", line, err)
		}
	}
	require(conn)

	p.Delay(200 * time.Millisecond)
	begin := time.Now()
	require(conn)
	if took := time.Since(begin); took < 400*time.Millisecond { // once each way
		t.Errorf("with a delay of 200ms each way the answer came after %s", took)
	}
	p.Heal()

	p.Stall(true)
	if _, err := ask(conn, 300*time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a stalled connection: %v", err)
	}
	p.Stall(false)
	require(conn) // by the answer to the question before

	p.Cut()
	if _, err := ask(conn, Patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection that was cut: %v", err)
	}
	require(dial(t, p.Addr()))

	p.Refuse(true)
	if _, err := ask(dial(t, p.Addr()), Patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection that is refused: %v", err)
	}
	p.Refuse(false)
	require(dial(t, p.Addr()))
}
