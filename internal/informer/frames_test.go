package informer

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

func plainFrame(name string, rv int) string {
	return fmt.Sprintf(`{"type":"MODIFIED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":%q,"resourceVersion":"%d"}}}`, name, rv)
}

// readFrames reads a whole body and returns the frames' types, names and versions, and the error at its end.
func readFrames(r io.Reader, limit int) ([]string, error) {
	fr := newFrameReader(r)
	if limit > 0 {
		fr.max = limit
	}
	var out []string
	var f frame
	for {
		line, err := fr.next(&f)
		if err != nil {
			return out, err
		}
		object := string(line[f.start:f.end])
		out = append(out, fmt.Sprintf("%s %s %s", f.typ, f.meta.name, f.meta.rv))
		if object[0] != '{' || object[len(object)-1] != '}' {
			return out, fmt.Errorf("object of %q is %q", line, object)
		}
	}
}

func TestFrameReader(t *testing.T) {
	a, b, c := plainFrame("a", 1), plainFrame("b", 2), plainFrame("c", 3)
	pretty := strings.NewReplacer(`{`, "{\n  ", `,`, ",\n  ", `}`, "\n}").Replace(a)
	long := strings.Replace(b, `"metadata"`, `"data":{"x":"`+strings.Repeat("y", 200<<10)+`"},"metadata"`, 1)
	abc := []string{"MODIFIED a 1", "MODIFIED b 2", "MODIFIED c 3"}
	broken := errors.New("broken")

	tests := []struct {
		name string
		body string
		max  int
		want []string
		err  error
		bad  bool // the error wraps errBadFrame
	}{
		{name: "one a line", body: a + "\n" + b + "\n" + c + "\n", want: abc, err: io.EOF},
		{name: "no newline at the end", body: a + "\n" + b + "\n" + c, want: abc, err: io.EOF},
		{name: "CRLF", body: a + "\r\n" + b + "\r\n" + c + "\r\n", want: abc, err: io.EOF},
		{name: "blank lines", body: "\n\n" + a + "\n \t\n" + b + "\n\r\n" + c + "\n\n", want: abc, err: io.EOF},
		{name: "only blank lines", body: "\n\n  \n", err: io.EOF},
		{name: "empty", err: io.EOF},
		{name: "indented", body: "  " + a + "\n\t" + b + "\n" + c + "  \n", want: abc, err: io.EOF},
		{name: "several on a line", body: a + b + c + "\n", want: abc, err: io.EOF},
		{name: "several on the second line", body: a + "\n" + b + " " + c, want: abc, err: io.EOF},
		{name: "over several lines", body: pretty + "\n" + b + "\n" + c + "\n", want: abc, err: io.EOF},
		{name: "a long line", body: a + "\n" + long + "\n" + c + "\n", want: abc, err: io.EOF},
		{name: "a long value over several lines", body: pretty + "\n" + strings.Replace(long, ",", ",\n", 2) + c, want: abc, err: io.EOF},
		{name: "cut off", body: a + "\n" + b[:len(b)-5], want: abc[:1], err: io.ErrUnexpectedEOF},
		{name: "cut off in a value over several lines", body: pretty + "\n" + pretty[:40], want: abc[:1], err: io.ErrUnexpectedEOF},
		{name: "not JSON", body: a + "\n<html>busy</html>\n" + b, want: abc[:1], bad: true},
		{name: "not JSON after a value over several lines", body: pretty + "\nbusy\n", want: abc[:1], bad: true},
		{name: "no type", body: a + "\n" + `{"object":{}}` + "\n", want: abc[:1], bad: true},
		{name: "no object", body: a + "\n" + `{"type":"ADDED"}` + "\n", want: abc[:1], bad: true},
		{name: "an array", body: "[]\n", bad: true},
		{name: "null", body: "null\n", bad: true},
		{name: "a broken string", body: a + "\n" + `{"type":"ADDED","object":{"x":"` + "\x01" + `"}}` + "\n", want: abc[:1], bad: true},
		{name: "as long as allowed", body: a + "\n" + b + "\n", max: len(a) + 1, want: abc[:2], err: io.EOF},
		{name: "a line too long", body: a + "\n" + long + "\n", max: 128 << 10, want: abc[:1], bad: true},
		{name: "a value over several lines too long", body: pretty + "\n" + long + "\n", max: 128 << 10, want: abc[:1], bad: true},
		{name: "no end at all", body: pretty + "\n\"" + strings.Repeat("x", 1<<20), max: 128 << 10, want: abc[:1], bad: true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for how, reader := range map[string]io.Reader{
				"at once":      strings.NewReader(test.body),
				"byte by byte": iotest.OneByteReader(strings.NewReader(test.body)),
				"with the end": iotest.DataErrReader(strings.NewReader(test.body)),
			} {
				got, err := readFrames(reader, test.max)
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Errorf("%s: frames differ (-want +got):\n%s", how, diff)
				}
				if test.bad != errors.Is(err, errBadFrame) || test.err != nil && !errors.Is(err, test.err) {
					t.Errorf("%s: error %v, want %v, bad frame %t", how, err, test.err, test.bad)
				}
			}
		})
	}
	t.Run("the stream's own error", func(t *testing.T) {
		for _, body := range []string{a + "\n", a + "\n" + b[:20], pretty + "\n", a + "\n" + b + c[:20]} {
			got, err := readFrames(io.MultiReader(strings.NewReader(body), iotest.ErrReader(broken)), 0)
			if !errors.Is(err, broken) || errors.Is(err, errBadFrame) || len(got) == 0 {
				t.Errorf("body %q: %v and error %v, want the frames and %v", body, got, err, broken)
			}
		}
	})
}

// A value that never ends must not be held in memory for ever.
func TestFrameReaderBoundsMemory(t *testing.T) {
	for name, prefix := range map[string]string{"line": "", "value": "{\n\"type\":\n"} {
		endless := &endlessReader{prefix: prefix + `"`}
		if _, err := readFrames(endless, 1<<20); !errors.Is(err, errBadFrame) {
			t.Errorf("%s: error %v, want a bad frame", name, err)
		}
		if endless.given > 4<<20 {
			t.Errorf("%s: %d bytes were read of a frame of at most 1 MiB", name, endless.given)
		}
	}
}

// endlessReader gives a prefix and then the inside of a string, for ever.
type endlessReader struct {
	prefix string
	given  int
}

func (r *endlessReader) Read(p []byte) (int, error) {
	n := copy(p, r.prefix)
	r.prefix = r.prefix[n:]
	for i := n; i < len(p); i++ {
		p[i] = 'x'
	}
	r.given += len(p)
	return len(p), nil
}
