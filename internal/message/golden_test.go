package message_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

var update = flag.Bool("update", false, "write the golden files anew")

// checkGolden compares a message with testdata/<name>.golden: subject, sorted headers, an empty line, body.
func checkGolden(t *testing.T, name string, m *message.Message) {
	t.Helper()
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n", m.Subject)
	var lines []string
	for header, values := range m.Header {
		for _, value := range values {
			lines = append(lines, header+": "+value+"\n")
		}
	}
	slices.Sort(lines)
	fmt.Fprintf(&b, "%s\n%s\n", strings.Join(lines, ""), m.Body)
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), want) {
		t.Errorf("%s differs; if that is meant, run the test with -update.\ngot:\n%s\nwant:\n%s", path, b.Bytes(), want)
	}
}

func TestGolden(t *testing.T) {
	gap := deploymentChange(change.OpModified, change.ReasonRelist)
	gap.Gap = change.Gap{From: "900", To: "1042"}
	unknown := deploymentChange(change.OpDeleted, change.ReasonMissing)
	unknown.Raw = nil
	repaired := deploymentChange(change.OpModified, change.ReasonRepair)
	repaired.Gap = change.Gap{From: "1000", To: "1042"}
	expired := deploymentChange(change.OpExpired, "")
	expired.Raw = nil
	item := deploymentChange(change.OpAdded, change.ReasonRelist)
	item.Raw = []byte(`{"metadata":{"name":"web"},"spec":{"replicas":3}}`)
	odd := secretChange(`{"metadata":{"name":"x"}}`)
	odd.Ref = change.ObjectRef{Group: "rbac.authorization.k8s.io", Resource: "clusterroles", Name: "größe: \"100%\"\r\nX: y"}
	odd.GVK.Group, odd.GVK.Kind = "rbac.authorization.k8s.io", "ClusterRole"

	for _, c := range []struct {
		name   string
		change *change.Change
		level  message.Level
	}{
		{"added", deploymentChange(change.OpAdded, change.ReasonWatch), message.LevelObject},
		{"modified", deploymentChange(change.OpModified, change.ReasonWatch), message.LevelObject},
		{"modified-gap", gap, message.LevelObject},
		{"deleted", deploymentChange(change.OpDeleted, change.ReasonWatch), message.LevelObject},
		{"deleted-unknown", unknown, message.LevelObject},
		{"left", deploymentChange(change.OpLeft, change.ReasonScope), message.LevelObject},
		{"synced", deploymentChange(change.OpSynced, change.ReasonResync), message.LevelObject},
		{"added-repair", deploymentChange(change.OpAdded, change.ReasonRepair), message.LevelObject},
		{"modified-repair", repaired, message.LevelObject},
		{"deleted-repair", deploymentChange(change.OpDeleted, change.ReasonRepair), message.LevelObject},
		{"expired", expired, message.LevelObject},
		{"added-list-item", item, message.LevelObject},
		{"added-odd-name", odd, message.LevelObject},
		{"added-secret", secretChange(`{"kind":"Secret","apiVersion":"v1","metadata":{"name":"login"},"data":{"password":"aHVudGVyMg=="}}`), message.LevelObject},
		{"added-oversize-metadata", deploymentChange(change.OpAdded, change.ReasonWatch), message.LevelMetadata},
		{"added-oversize-identity", deploymentChange(change.OpAdded, change.ReasonWatch), message.LevelIdentity},
		{"added-oversize-none", deploymentChange(change.OpAdded, change.ReasonWatch), message.LevelNone},
	} {
		for mode, adjust := range map[string]func(*message.Options){"binary": func(*message.Options) {}, "structured": structured} {
			t.Run(c.name+"/"+mode, func(t *testing.T) {
				m, err := newEncoder(t, adjust).Reduce(c.change, 41, c.level)
				if err != nil {
					t.Fatal(err)
				}
				checkGolden(t, c.name+"."+mode, m)
			})
		}
	}
	t.Run("watermark", func(t *testing.T) {
		for _, adjust := range []func(*message.Options){func(*message.Options) {}, structured} {
			m, err := newEncoder(t, adjust).EncodeWatermark(sampleWatermark(), 41)
			if err != nil {
				t.Fatal(err)
			}
			checkGolden(t, "watermark", m)
		}
	})
	t.Run("writer", func(t *testing.T) {
		for _, e := range []*message.Encoder{newEncoder(t), newEncoder(t, structured)} {
			m, err := e.EncodeWriter(message.WriterRecord{Epoch: 8, Holder: "deltabridge-0 é", ClusterUID: "c0ffee", Time: seen}, 3)
			if err != nil {
				t.Fatal(err)
			}
			checkGolden(t, "writer", m)
		}
	})
}
