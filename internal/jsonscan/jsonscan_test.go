package jsonscan_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/deltabridge/deltabridge/internal/jsonscan"
)

// texts are valid and invalid on purpose: what a grammar's every branch accepts, and its nearest neighbours.
var texts = []string{
	``, ` `, `x`, `null`, `nul`, `nulL`, `nullx`, `true`, `tru`, `false`, `falsy`, "\t\r\n null \n", "\vnull", "null\v",
	`0`, `-0`, `00`, `01`, `-`, `-a`, `+1`, `1.`, `.5`, `1.5`, `1.5.5`, `1e`, `1e+`, `1e5`, `1E-05`, `1.0e+10`, `-12.34E56`, `1 2`, `0x10`, `1f`,
	`""`, `"`, `"a`, `"abcdefgh"`, `"abcdefghi`, `"abcdefghijklmnop\"q"`, "\"1234567\x1f\"", "\"\x00\"", "\"a\nb\"", "\"\x7f\"", "\"\x20\"",
	`"\b\f\n\r\t\/\\\""`, `"\a"`, `"\'"`, `"\`, `"\u`, `"\u12`, `"\u12g4"`, `"\u00e9\uD83D\uDE00"`, `"\ud800"`, `"\ud800\ud800"`, `"\udc00\ud83d\ude00"`,
	`"\ud800x"`, `"\ud800\n"`, `"\u0000"`, "\"\xff\"", "\"a\xc3\"", "\"\xe2\x82\"", "\"\xed\xa0\x80\"", "\"é€😀 padding padding\"", "\"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\"", "\"\ufffd\"",
	`{}`, ` { } `, `{`, `}`, `{"a"}`, `{"a":}`, `{"a":1`, `{"a":1,}`, `{,}`, `{"a":1,"b":[2,{"c":null}],"a":3}`, `{"a" : 1 , "b" : 2 }`, `{a:1}`, `{1:1}`, `{"a":1;"b":2}`, `{"a"::1}`,
	`{"a":1}}`, `{"a":{}}`, `{"\u0061\ud800":"\n","":0}`, "{\"\xff\":1,\"\xfe\":2}", `{"a":1 "b":2}`, `{"a":01}`, `{"x":"y"`, `{"x`, `{"x"`, `{"x":`, `{"x": `, `{"x":1 `, `{"x":1, `,
	`[]`, ` [ ] `, `[`, `]`, `[1`, `[1,`, `[1,]`, `[,]`, `[1 2]`, `[1,2,[3,[4]],{}]`, `[}`, `{]`, `[1]]`, `["a","b"]`, `[1 , 2 ]`,
	"\xef\xbb\xbf{}", `{"metadata":{"name":"web","uid":"1","resourceVersion":"2"},"spec":{"a":[true,false,null,-1.5e3]}}`,
}

func nested(depth int, open, mid, shut string) string {
	return strings.Repeat(open, depth) + mid + strings.Repeat(shut, depth)
}

var deepTexts = []string{
	nested(jsonscan.MaxDepth, `[`, ``, `]`), nested(jsonscan.MaxDepth+1, `[`, ``, `]`),
	nested(jsonscan.MaxDepth, `{"a":`, `1`, `}`), nested(jsonscan.MaxDepth+1, `{"a":`, `1`, `}`),
	nested(jsonscan.MaxDepth/2, `[{"a":`, `"x"`, `}]`), nested(jsonscan.MaxDepth/2, `[{"a":`, `{}`, `}]`),
	nested(jsonscan.MaxDepth-1, `[`, `[],[]`, `]`), nested(jsonscan.MaxDepth-1, `[`, `[],[[]]`, `]`),
}

// walk consumes one value by nested walks, entering every array and object.
func walk(w *jsonscan.Walker, b []byte, i int) (int, error) {
	switch b[i] {
	case '{':
		return w.Object(b, i, func(_ []byte, _, value int) (int, error) { return walk(w, b, value) })
	case '[':
		return w.Array(b, i, func(_, value int) (int, error) { return walk(w, b, value) })
	case '"':
		_, end, err := jsonscan.String(b, i)
		return end, err
	}
	return w.Skip(b, i)
}

func walkValid(b []byte) bool {
	start := jsonscan.SkipSpace(b, 0)
	if start == len(b) {
		return false
	}
	var w jsonscan.Walker
	end, err := walk(&w, b, start)
	return err == nil && jsonscan.SkipSpace(b, end) == len(b)
}

func checkValid(t *testing.T, b []byte) {
	t.Helper()
	before := bytes.Clone(b)
	want := json.Valid(b)
	if got := jsonscan.Valid(b); got != want {
		t.Errorf("Valid(%.200q) = %v, json.Valid says %v", b, got, want)
	}
	if got := walkValid(b); got != want {
		t.Errorf("walking %.200q: valid = %v, json.Valid says %v", b, got, want)
	}
	_, err := jsonscan.Skip(b, 0)
	var syntax *jsonscan.SyntaxError
	if err != nil && (!errors.As(err, &syntax) || syntax.Offset < 0 || syntax.Offset > len(b)) {
		t.Errorf("Skip(%.200q): error %v is no SyntaxError within the text", b, err)
	}
	if !bytes.Equal(before, b) {
		t.Errorf("the text was written to: %.200q became %.200q", before, b)
	}
}

func TestValid(t *testing.T) {
	for _, text := range append(texts, deepTexts...) {
		checkValid(t, []byte(text))
	}
	// Every byte at every place of a word in a string, for the word-wise tests.
	for place := range 18 {
		for c := range 256 {
			text := []byte(`"abcdefghijklmnopqr"`)
			text[1+place] = byte(c)
			checkValid(t, text)
			checkString(t, text)
		}
	}
}

func FuzzValid(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) { checkValid(t, b) })
}

// checkMembers compares a walk with a decoded map: the names, and each name's last value, byte for byte.
func checkMembers(t *testing.T, b []byte) {
	t.Helper()
	var want map[string]json.RawMessage
	wantErr := json.Unmarshal(b, &want)
	if wantErr == nil && want == nil { // null
		return
	}
	got := map[string]json.RawMessage{}
	end, err := jsonscan.Object(b, 0, func(key []byte, keyStart, valueStart int) (int, error) {
		if literal, _, err := jsonscan.String(b, keyStart); err != nil || !bytes.Equal(literal, key) {
			t.Errorf("%.200q: name %q, but at its index stands %q, %v", b, key, literal, err)
		}
		valueEnd, err := jsonscan.Skip(b, valueStart)
		if err == nil {
			got[string(key)] = b[valueStart:valueEnd]
		}
		return valueEnd, err
	})
	if err == nil && jsonscan.SkipSpace(b, end) != len(b) {
		err = errors.New("trailing data")
	}
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("Object(%.200q) = %v, encoding/json says %v", b, err, wantErr)
	}
	if err != nil {
		return
	}
	if len(got) != len(want) {
		t.Errorf("Object(%.200q): names %q, want %q", b, got, want)
	}
	for name, value := range want {
		if !bytes.Equal(got[name], value) {
			t.Errorf("Object(%.200q): %q is %q, want %q", b, name, got[name], value)
		}
	}
}

// checkElements compares a walk with a decoded slice.
func checkElements(t *testing.T, b []byte) {
	t.Helper()
	var want []json.RawMessage
	wantErr := json.Unmarshal(b, &want)
	if wantErr == nil && want == nil { // null
		return
	}
	var got []json.RawMessage
	end, err := jsonscan.Array(b, 0, func(index, valueStart int) (int, error) {
		if index != len(got) {
			t.Errorf("Array(%.200q): element %d came as %d", b, len(got), index)
		}
		valueEnd, err := jsonscan.Skip(b, valueStart)
		if err == nil {
			got = append(got, b[valueStart:valueEnd])
		}
		return valueEnd, err
	})
	if err == nil && jsonscan.SkipSpace(b, end) != len(b) {
		err = errors.New("trailing data")
	}
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("Array(%.200q) = %v, encoding/json says %v", b, err, wantErr)
	}
	if err != nil {
		return
	}
	if len(got) != len(want) {
		t.Fatalf("Array(%.200q) = %q, want %q", b, got, want)
	}
	for i := range want {
		if !bytes.Equal(got[i], want[i]) {
			t.Errorf("Array(%.200q)[%d] = %q, want %q", b, i, got[i], want[i])
		}
	}
}

func TestWalks(t *testing.T) {
	for _, text := range texts {
		checkMembers(t, []byte(text))
		checkElements(t, []byte(text))
	}
}

func FuzzWalks(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		checkMembers(t, b)
		checkElements(t, b)
	})
}

// checkString compares with decoding into a string. null decodes into any string, so it is left to the other tests.
func checkString(t *testing.T, b []byte) {
	t.Helper()
	if start := jsonscan.SkipSpace(b, 0); start < len(b) && b[start] == 'n' {
		return
	}
	var want string
	wantErr := json.Unmarshal(b, &want)
	got, err := jsonscan.Unquote(b)
	if (err == nil) != (wantErr == nil) || got != want {
		t.Errorf("Unquote(%.200q) = %q, %v; encoding/json says %q, %v", b, got, err, want, wantErr)
	}
}

func TestString(t *testing.T) {
	for _, text := range texts {
		checkString(t, []byte(text))
	}
	b := []byte(`  "plain" "esc\u0061ped"`)
	value, end, err := jsonscan.String(b, 0)
	if err != nil || string(value) != "plain" || end != 9 || &value[0] != &b[3] {
		t.Errorf("String = %q, %d, %v: want the text's own bytes", value, end, err)
	}
	if _ = append(value, 'X'); b[8] != '"' {
		t.Error("appending to a value wrote to the text")
	}
	value, end, err = jsonscan.String(b, end)
	if err != nil || string(value) != "escaped" || end != len(b) {
		t.Errorf("String = %q, %d, %v", value, end, err)
	}
}

func FuzzString(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
		f.Add([]byte(strconv.Quote(text)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		checkString(t, b)
		checkString(t, append(append([]byte{'"'}, b...), '"'))
	})
}

func TestErrors(t *testing.T) {
	cases := []struct {
		text   string
		offset int
		msg    string
	}{
		{``, 0, "unexpected end, want a value"},
		{`{"a":tru}`, 8, `unexpected byte '}', want true`},
		{`{"a" 1}`, 5, `unexpected byte '1', want ':'`},
		{`{"a":1 1}`, 7, `unexpected byte '1', want ',' or '}'`},
		{`{"a":1,}`, 7, `unexpected byte '}', want a member's name`},
		{`[1 1]`, 3, `unexpected byte '1', want ',' or ']'`},
		{`"\x"`, 2, `unexpected byte 'x', want an escape`},
		{`"\u00`, 5, `unexpected end, want a hexadecimal digit`},
		{"\"\n\"", 1, `unexpected byte '\n', want an escape for a control character`},
		{`"abc`, 4, `unexpected end, want a string's end`},
		{`-x`, 1, `unexpected byte 'x', want a digit`},
		{nested(jsonscan.MaxDepth+1, `[`, ``, `]`), jsonscan.MaxDepth, "more than 10000 arrays and objects in one another"},
	}
	for _, c := range cases {
		_, err := jsonscan.Skip([]byte(c.text), 0)
		var syntax *jsonscan.SyntaxError
		if !errors.As(err, &syntax) || syntax.Offset != c.offset || syntax.Msg != c.msg {
			t.Errorf("Skip(%.20q): %v, want %q at %d", c.text, err, c.msg, c.offset)
		}
	}
	want := "invalid JSON at offset 3: unexpected byte '1', want ',' or ']'"
	if _, err := jsonscan.Skip([]byte(`[1 1]`), 0); err == nil || err.Error() != want {
		t.Errorf("error text %q, want %q", err, want)
	}
}

// TestCallbacks holds what a walk does with what its callback returns.
func TestCallbacks(t *testing.T) {
	stop := errors.New("stop")
	b := []byte(`{"a":[1,2],"b":3}`)
	_, err := jsonscan.Object(b, 0, func(key []byte, _, value int) (int, error) {
		if string(key) == "b" {
			t.Error("the walk went on after an error")
		}
		return jsonscan.Array(b, value, func(index, value int) (int, error) {
			if index == 1 {
				return value, stop
			}
			return jsonscan.Skip(b, value)
		})
	})
	if !errors.Is(err, stop) {
		t.Errorf("error %v, want the callback's", err)
	}
	for _, end := range []int{-1, 0, 5, len(b) + 1} {
		if _, err = jsonscan.Object(b, 0, func([]byte, int, int) (int, error) { return end, nil }); err == nil {
			t.Errorf("a callback that returned %d was believed", end)
		}
		if _, err = jsonscan.Array(b, 5, func(int, int) (int, error) { return end, nil }); err == nil {
			t.Errorf("a callback that returned %d was believed", end)
		}
	}
	for _, i := range []int{len(b), len(b) + 1} {
		if _, err = jsonscan.Skip(b, i); err == nil {
			t.Errorf("Skip found a value at %d of %d", i, len(b))
		}
		if _, _, err = jsonscan.String(b, i); err == nil {
			t.Errorf("String found a value at %d of %d", i, len(b))
		}
	}
}

// pod is a text in the shape and size of a watch event.
func pod() []byte {
	var b bytes.Buffer
	b.WriteString(`{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-5d9c7b8f6-abcde","namespace":"default","uid":"6f1d2c3b-4a5e-6789-abcd-ef0123456789","resourceVersion":"123456","labels":{"app":"web","pod-template-hash":"5d9c7b8f6"},"managedFields":[`)
	for i := range 20 {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:status":{},"f:type":{}}}}},"subresource":"status"}`)
	}
	b.WriteString(`]},"spec":{"containers":[`)
	for i := range 10 {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"name":"main","image":"registry.example.com/team/web:1.2.3","ports":[{"containerPort":8080,"protocol":"TCP"}],"env":[{"name":"LEVEL","value":"info"}],"resources":{"limits":{"cpu":"500m"}},"readinessProbe":{"periodSeconds":10,"failureThreshold":3}}`)
	}
	b.WriteString(`]},"status":{"phase":"Running","ready":true}}}`)
	return b.Bytes()
}

// scanPod finds what a frame scanner needs in one pass.
func scanPod(b []byte) ([]byte, error) {
	var name []byte
	_, err := jsonscan.Object(b, 0, func(key []byte, _, i int) (int, error) {
		if string(key) != "object" {
			return jsonscan.Skip(b, i)
		}
		return jsonscan.Object(b, i, func(key []byte, _, i int) (int, error) {
			if string(key) != "metadata" {
				return jsonscan.Skip(b, i)
			}
			return jsonscan.Object(b, i, func(key []byte, _, i int) (end int, err error) {
				if string(key) != "name" {
					return jsonscan.Skip(b, i)
				}
				name, end, err = jsonscan.String(b, i)
				return end, err
			})
		})
	})
	return name, err
}

func TestAllocations(t *testing.T) {
	b := pod()
	if !json.Valid(b) {
		t.Fatal("the sample is not JSON")
	}
	var name []byte
	var err error
	n := testing.AllocsPerRun(100, func() {
		if name, err = scanPod(b); err == nil {
			_, err = jsonscan.Skip(b, 0)
		}
	})
	if err != nil || string(name) != "web-5d9c7b8f6-abcde" {
		t.Fatalf("scan: %q, %v", name, err)
	}
	if n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func BenchmarkSkip(b *testing.B) {
	text := pod()
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := jsonscan.Skip(text, 0); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkObject(b *testing.B) {
	text := pod()
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := scanPod(text); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkJSONValid is the measure for BenchmarkSkip.
func BenchmarkJSONValid(b *testing.B) {
	text := pod()
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if !json.Valid(text) {
			b.Fatal("not valid")
		}
	}
}
