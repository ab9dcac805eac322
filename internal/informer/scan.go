package informer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltabridge/deltabridge/internal/jsonscan"
)

// maxFrameBytes bounds one watch event. The API server stores objects of up to 1.5 MiB; what is far beyond that is a
// broken peer, not an object.
const maxFrameBytes = 64 << 20

// errBadFrame means that the peer sent something that is not a watch event.
var errBadFrame = errors.New("watch frame is not valid")

// metadata is what one pass over an object's bytes collects. The slices alias the scanned bytes.
type metadata struct {
	apiVersion, kind         []byte
	namespace, name, uid, rv []byte
}

// frame is one watch event. The slices alias the scanned line.
type frame struct {
	typ        []byte
	start, end int // range of the object within the line; end is 0 if there was none
	meta       metadata
}

// scanFrame finds type, object and the object's metadata in one pass over a watch event's bytes. It accepts exactly
// one JSON value, optionally between white space. Like encoding/json into a map it takes the last of equal keys. A value
// of another type than it should have counts as absent.
func scanFrame(line []byte, f *frame) error {
	*f = frame{}
	var w jsonscan.Walker
	end, err := w.Object(line, 0, func(key []byte, _, value int) (int, error) {
		switch string(key) {
		case "type":
			var end int
			var err error
			f.typ, end, err = scanString(&w, line, value)
			return end, err
		case "object":
			f.meta, f.start, f.end = metadata{}, 0, 0
			if line[value] != '{' {
				return w.Skip(line, value)
			}
			end, err := scanObject(&w, line, value, &f.meta)
			f.start, f.end = value, end
			return end, err
		}
		return w.Skip(line, value)
	})
	if err != nil {
		return err
	}
	if rest := jsonscan.SkipSpace(line, end); rest != len(line) {
		return fmt.Errorf("%d bytes after the frame's value", len(line)-rest)
	}
	if len(f.typ) == 0 || f.end == 0 {
		return errors.New("frame has no type or no object")
	}
	return nil
}

// scanObject collects the metadata of the object at b[i:] and returns the index after it.
func scanObject(w *jsonscan.Walker, b []byte, i int, m *metadata) (int, error) {
	return w.Object(b, i, func(key []byte, _, value int) (end int, err error) {
		switch string(key) {
		case "apiVersion":
			m.apiVersion, end, err = scanString(w, b, value)
			return end, err
		case "kind":
			m.kind, end, err = scanString(w, b, value)
			return end, err
		case "metadata":
			m.namespace, m.name, m.uid, m.rv = nil, nil, nil, nil
			if b[value] != '{' {
				return w.Skip(b, value)
			}
			return scanMetadata(w, b, value, m)
		}
		return w.Skip(b, value)
	})
}

func scanMetadata(w *jsonscan.Walker, b []byte, i int, m *metadata) (int, error) {
	return w.Object(b, i, func(key []byte, _, value int) (end int, err error) {
		switch string(key) {
		case "namespace":
			m.namespace, end, err = scanString(w, b, value)
			return end, err
		case "name":
			m.name, end, err = scanString(w, b, value)
			return end, err
		case "uid":
			m.uid, end, err = scanString(w, b, value)
			return end, err
		case "resourceVersion":
			m.rv, end, err = scanString(w, b, value)
			return end, err
		}
		return w.Skip(b, value)
	})
}

// scanString reads a string value; any other value counts as the empty string.
func scanString(w *jsonscan.Walker, b []byte, i int) ([]byte, int, error) {
	if b[i] != '"' {
		end, err := w.Skip(b, i)
		return nil, end, err
	}
	return jsonscan.String(b, i)
}

// object makes an Object of scanned metadata and JSON that the caller gives away. Its strings share one piece of memory.
func (n *interned) object(m *metadata, raw []byte) *Object {
	var buf [256]byte
	text := append(append(append(buf[:0], m.name...), m.uid...), m.rv...)
	own := string(text)
	uid, rv := len(m.name), len(m.name)+len(m.uid)
	return &Object{
		namespace: n.namespace(m.namespace),
		name:      own[:uid],
		uid:       types.UID(own[uid:rv]),
		rv:        own[rv:],
		kind:      n.typeMeta(m.apiVersion, m.kind),
		load:      &load{raw: raw},
	}
}

// scanList reads a list's body. Items of a list of built-in types come without apiVersion and kind; what is missing
// is put in, so that an object looks the same whether a list or a watch brought it. Objects that keep refuses are left
// out. The items own their bytes: the body can be dropped.
//
// What is not a list for certain is refused: taken for an empty list, it would delete every object of the resource.
func scanList(body []byte, apiVersion, kind string, keep func(namespace string) bool) (*List, error) {
	list := &List{}
	var names interned
	var w jsonscan.Walker
	var listKind []byte
	sawItems := false
	end, err := w.Object(body, 0, func(key []byte, _, value int) (end int, err error) {
		switch string(key) {
		case "kind":
			listKind, end, err = scanString(&w, body, value)
			return end, err
		case "metadata":
			list.ListMeta = metav1.ListMeta{}
			if body[value] != '{' {
				return w.Skip(body, value)
			}
			return scanListMeta(&w, body, value, &list.ListMeta)
		case "items":
			list.Items, sawItems = nil, true
			if body[value] == 'n' { // null: an empty list of some servers
				return w.Skip(body, value)
			}
			return w.Array(body, value, func(index, value int) (int, error) {
				var m metadata
				end, err := scanObject(&w, body, value, &m)
				if err != nil {
					return 0, err
				}
				if len(m.name) == 0 || len(m.rv) == 0 {
					return 0, fmt.Errorf("item %d has no name or resourceVersion", index)
				}
				if keep != nil && !keep(string(m.namespace)) {
					return end, nil
				}
				raw := withTypeMeta(body[value:end], &m, apiVersion, kind)
				list.Items = append(list.Items, names.object(&m, raw))
				return end, nil
			})
		}
		return w.Skip(body, value)
	})
	if err != nil {
		return nil, fmt.Errorf("list body: %w", err)
	}
	if jsonscan.SkipSpace(body, end) != len(body) {
		return nil, errors.New("list body: more than one value")
	}
	if list.ResourceVersion == "" || !sawItems && !bytes.HasSuffix(listKind, []byte("List")) {
		return nil, fmt.Errorf("list body: no resourceVersion or no items; the server's answer, of kind %q, is not a list", listKind)
	}
	return list, nil
}

// scanListMeta reads what the Reflector and its pager need of a list's metadata.
func scanListMeta(w *jsonscan.Walker, b []byte, i int, m *metav1.ListMeta) (int, error) {
	return w.Object(b, i, func(key []byte, _, value int) (int, error) {
		var into *string
		switch string(key) {
		case "resourceVersion":
			into = &m.ResourceVersion
		case "continue":
			into = &m.Continue
		default:
			return w.Skip(b, value)
		}
		text, end, err := scanString(w, b, value)
		*into = string(text)
		return end, err
	})
}

// withTypeMeta copies an object's JSON, with kind and apiVersion put in front where they are missing, in the order in
// which the API server writes them in a watch event.
func withTypeMeta(raw []byte, m *metadata, apiVersion, kind string) []byte {
	if len(m.apiVersion) > 0 && len(m.kind) > 0 {
		return bytes.Clone(raw)
	}
	out := make([]byte, 0, len(raw)+len(apiVersion)+len(kind)+len(`"kind":"","apiVersion":"",`))
	out = append(out, '{')
	if len(m.kind) == 0 {
		out = append(out, `"kind":"`...)
		out = append(out, kind...)
		out = append(out, `",`...)
		m.kind = []byte(kind)
	}
	if len(m.apiVersion) == 0 {
		out = append(out, `"apiVersion":"`...)
		out = append(out, apiVersion...)
		out = append(out, `",`...)
		m.apiVersion = []byte(apiVersion)
	}
	rest := raw[1:]
	if next := jsonscan.SkipSpace(rest, 0); next < len(rest) && rest[next] == '}' {
		out = out[:len(out)-1] // an object without members takes no comma
	}
	return append(out, rest...)
}

// frameReader cuts a watch's body into frames. The API server sends one frame a line; for a peer that formats its JSON
// otherwise it falls back to reading value by value, as client-go's own framer does.
type frameReader struct {
	r       *bufio.Reader
	max     int           // length of the longest frame that is read
	long    []byte        // a line longer than the reader's buffer, pieced together
	decoder *json.Decoder // set once a line was not one whole value
	bound   *boundedReader
	value   json.RawMessage
}

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, 64<<10), max: maxFrameBytes}
}

// next reads one frame into f and returns the bytes that f's ranges refer to; they are valid until the next call. It
// returns io.EOF at the end of the stream, an error that wraps errBadFrame for something that is not a frame, and the
// stream's own error otherwise. After an error it must not be called again.
func (fr *frameReader) next(f *frame) ([]byte, error) {
	if fr.decoder != nil {
		return fr.nextValue(f)
	}
	for {
		line, err := fr.line()
		if err != nil && (!errors.Is(err, io.EOF) || len(line) == 0) {
			return nil, err
		}
		if jsonscan.SkipSpace(line, 0) == len(line) {
			if err != nil {
				return nil, err
			}
			continue
		}
		if scanErr := scanFrame(line, f); scanErr == nil {
			return line, nil
		}
		fr.bound = &boundedReader{r: io.MultiReader(bytes.NewReader(bytes.Clone(line)), fr.r)}
		fr.decoder = json.NewDecoder(fr.bound)
		return fr.nextValue(f)
	}
}

func (fr *frameReader) nextValue(f *frame) ([]byte, error) {
	// The decoder holds a value in memory until it is whole, so what it may read for one has to be bounded.
	fr.bound.left = fr.max
	if err := fr.decoder.Decode(&fr.value); err != nil {
		var syntax *json.SyntaxError
		switch {
		case errors.As(err, &syntax):
			return nil, fmt.Errorf("%w: %w", errBadFrame, err)
		case errors.Is(err, errBoundReached):
			return nil, fr.tooLong()
		}
		return nil, err
	}
	if err := scanFrame(fr.value, f); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadFrame, err)
	}
	return fr.value, nil
}

// line returns the next line, its end included. Only at the end of the stream is the line without one.
func (fr *frameReader) line() ([]byte, error) {
	fr.long = fr.long[:0]
	for {
		piece, err := fr.r.ReadSlice('\n')
		if err == nil && len(fr.long) == 0 {
			return piece, nil
		}
		fr.long = append(fr.long, piece...)
		if len(fr.long) > fr.max {
			return nil, fr.tooLong()
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return fr.long, err
		}
	}
}

func (fr *frameReader) tooLong() error {
	return fmt.Errorf("%w: longer than %d bytes", errBadFrame, fr.max)
}

var errBoundReached = errors.New("bound reached")

// boundedReader reads at most left bytes and fails then.
type boundedReader struct {
	r    io.Reader
	left int
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errBoundReached
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
