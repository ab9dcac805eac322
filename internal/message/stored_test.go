package message_test

import (
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

func TestParseStored(t *testing.T) {
	for op := change.OpAdded; op <= change.OpExpired; op++ {
		for _, adjust := range []func(*message.Options){func(*message.Options) {}, structured} {
			c := deploymentChange(op, change.ReasonWatch)
			c.UID, c.RV = "u é", "r %"
			m := encode(t, newEncoder(t, adjust), c)
			got, err := message.ParseStored(m.Header, m.Subject, 99)
			want := change.Stored{UID: c.UID, RV: c.RV, Op: op, Sequence: 99, Epoch: 7}
			if err != nil || got != want {
				t.Errorf("%s: %+v, %v, want %+v", op, got, err, want)
			}
		}
	}
}

func TestParseStoredRefuses(t *testing.T) {
	good := encode(t, newEncoder(t), deploymentChange(change.OpAdded, change.ReasonWatch)).Header
	for _, c := range []struct {
		header  string
		values  []string
		foreign bool
	}{
		{message.HeaderType, nil, true},
		{message.HeaderType, []string{""}, true},
		{message.HeaderType, []string{"com.example.added"}, true},
		{message.HeaderType, []string{"added"}, true},
		{message.HeaderType, []string{"io.deltabridge."}, true},
		{message.HeaderType, []string{"io.deltabridge.watermark"}, true},
		{message.HeaderType, []string{"io.deltabridge.writer"}, true},
		{message.HeaderType, []string{"io.deltabridge.added", "io.deltabridge.deleted"}, true},
		{message.HeaderUID, nil, false},
		{message.HeaderUID, []string{""}, false},
		{message.HeaderUID, []string{"a", "b"}, false},
		{message.HeaderUID, []string{"%"}, false},
		{message.HeaderRV, nil, false},
		{message.HeaderRV, []string{""}, false},
		{message.HeaderRV, []string{"%zz"}, false},
		{message.HeaderEpoch, []string{"x"}, false},
		{message.HeaderEpoch, []string{"-1"}, false},
		{message.HeaderEpoch, []string{"18446744073709551616"}, false},
		{message.HeaderEpoch, []string{"1", "2"}, false},
		{message.HeaderEpoch, nil, false},
	} {
		header := maps.Clone(good)
		header[c.header] = c.values
		got, err := message.ParseStored(header, "kube.prod.x", 17)
		if err == nil || got != (change.Stored{}) {
			t.Errorf("%s %q: %+v, want an error", c.header, c.values, got)
			continue
		}
		for _, want := range []string{c.header, "kube.prod.x", "17"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s %q: error %q does not say %q", c.header, c.values, err, want)
			}
		}
		if errors.Is(err, message.ErrForeign) != c.foreign {
			t.Errorf("%s %q: error %q, foreign should be %v", c.header, c.values, err, c.foreign)
		}
	}
	if _, err := message.ParseStored(nil, "s", 1); !errors.Is(err, message.ErrForeign) {
		t.Errorf("no headers: %v, want ErrForeign", err)
	}
	header := maps.Clone(good)
	delete(header, message.HeaderEpoch)
	if got, err := message.ParseStored(header, "s", 1); err != nil || got.Epoch != 0 || got.UID == "" {
		t.Errorf("no epoch: %+v, %v, want epoch 0", got, err)
	}
}

func TestWriterRecord(t *testing.T) {
	e := newEncoder(t)
	in := message.WriterRecord{Epoch: 1<<64 - 1, Holder: "pod\r\n é", ClusterUID: "c", Time: seen}
	m, err := e.EncodeWriter(in, 12)
	if err != nil {
		t.Fatal(err)
	}
	if m.Subject != "kube.prod" || m.ID != "writer/18446744073709551615/pod%0D%0A%20%C3%A9" || m.Header[message.HeaderMsgID][0] != m.ID {
		t.Errorf("subject %q, id %q", m.Subject, m.ID)
	}
	got, err := message.ParseWriterRecord(m.Body)
	if err != nil {
		t.Fatal(err)
	}
	want := in
	want.Format, want.Time = 1, seen.UTC().Truncate(time.Microsecond)
	if got != want {
		t.Errorf("%+v came back as %+v", want, got)
	}
	for _, r := range []message.WriterRecord{{Holder: "a"}, {Epoch: 1}, {Epoch: 1, Holder: "a", Time: time.Date(20000, 1, 1, 0, 0, 0, 0, time.UTC)}} {
		if m, err = e.EncodeWriter(r, 0); err == nil {
			t.Errorf("%+v was encoded: %v", r, m)
		}
	}
	for _, body := range []string{``, `[]`, `{"format":1}`, `{"format":1,"epoch":1}`, `{"format":1,"holder":"a"}`, `{"format":1,"epoch":-1,"holder":"a"}`, `{"format":1,"epoch":1,"holder":"a","time":"now"}`} {
		if r, parseErr := message.ParseWriterRecord([]byte(body)); parseErr == nil || errors.Is(parseErr, message.ErrFormat) {
			t.Errorf("%s: %+v, %v", body, r, parseErr)
		}
	}
	for _, body := range []string{`{}`, `{"format":0,"epoch":1,"holder":"a"}`, `{"format":2,"epoch":1,"holder":"a"}`} {
		if r, parseErr := message.ParseWriterRecord([]byte(body)); !errors.Is(parseErr, message.ErrFormat) {
			t.Errorf("%s: %+v, %v, want ErrFormat", body, r, parseErr)
		}
	}
	if r, parseErr := message.ParseWriterRecord([]byte(`{"format":1,"epoch":3,"holder":"a","later":{}}`)); parseErr != nil || r.Epoch != 3 {
		t.Errorf("an unknown member: %+v, %v", r, parseErr)
	}
}

// FuzzParseStored holds that headers of others do no harm.
func FuzzParseStored(f *testing.F) {
	f.Add("io.deltabridge.added", "u", "1", "7")
	f.Add("io.deltabridge.", "%", "", "-")
	f.Fuzz(func(t *testing.T, typ, uid, rv, epoch string) {
		header := map[string][]string{message.HeaderType: {typ}, message.HeaderUID: {uid}, message.HeaderRV: {rv}, message.HeaderEpoch: {epoch}}
		stored, err := message.ParseStored(header, "s", 1)
		if err != nil {
			return
		}
		if message.Type(stored.Op) != typ || stored.UID == "" || stored.RV == "" || stored.Sequence != 1 {
			t.Errorf("%q became %+v", header, stored)
		}
		if number, jsonErr := json.Marshal(stored.Epoch); jsonErr != nil || strings.TrimLeft(epoch, "0") != strings.TrimLeft(string(number), "0") {
			t.Errorf("epoch %q became %d", epoch, stored.Epoch)
		}
	})
}
