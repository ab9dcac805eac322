package config

import (
	"log/slog"
	"math"
	"testing"
	"time"
)

func TestByteSize(t *testing.T) {
	for _, tt := range []struct {
		text, canonical string
		want            ByteSize
	}{
		{"0", "0", 0},
		{"1", "1", 1},
		{"010", "10", 10},
		{"-1", "-1", -1},
		{"1023", "1023", 1023},
		{"1024", "1Ki", 1 << 10},
		{"10G", "10G", 1e10},
		{"64Mi", "64Mi", 64 << 20},
		{"1024Mi", "1Gi", 1 << 30},
		{"3Ti", "3Ti", 3 << 40},
		{"1k", "1k", 1000},
		{"200000000", "200M", 2e8},
		{"7E", "7E", 7e18},
		{"7Ei", "7Ei", 7 << 60},
		{"9223372036854775807", "9223372036854775807", math.MaxInt64},
	} {
		var got ByteSize
		if err := got.Decode(tt.text); err != nil || got != tt.want {
			t.Errorf("Decode(%q) = %d, %v, want %d", tt.text, int64(got), err, int64(tt.want))
		}
		if got.String() != tt.canonical {
			t.Errorf("ByteSize(%d).String() = %q, want %q", int64(got), got.String(), tt.canonical)
		}
	}
	for _, text := range []string{
		"", "Mi", "1.5Gi", "64m", "64MB", "64MiB", "1 Mi", " 1", "1K", "1e3", "0x10", "1_000", "∞",
		"9223372036854775808", "8Ei", "10E", "-9Ei", "9007199254740992Ki",
	} {
		var got ByteSize
		if err := got.Decode(text); err == nil {
			t.Errorf("Decode(%q) = %d, want an error", text, int64(got))
		}
	}
}

func TestFormatDuration(t *testing.T) {
	for _, tt := range []struct {
		d    time.Duration
		want string
	}{
		{0, "0"}, {500 * time.Millisecond, "500ms"}, {20 * time.Second, "20s"}, {10 * time.Minute, "10m"},
		{70 * time.Second, "1m10s"}, {time.Hour, "1h"}, {168 * time.Hour, "168h"},
		{100 * time.Minute, "1h40m"}, {time.Hour + time.Second, "1h0m1s"},
	} {
		got := formatDuration(tt.d)
		if got != tt.want {
			t.Errorf("formatDuration(%v) = %q, want %q", tt.d, got, tt.want)
		}
		if back, err := time.ParseDuration(got); err != nil || back != tt.d {
			t.Errorf("ParseDuration(%q) = %v, %v, want %v", got, back, err, tt.d)
		}
	}
}

func TestLogLevel(t *testing.T) {
	for level, want := range map[LogLevel]slog.Level{
		"": slog.LevelInfo, LogDebug: slog.LevelDebug, LogInfo: slog.LevelInfo,
		LogWarn: slog.LevelWarn, LogError: slog.LevelError,
	} {
		if got := level.Level(); got != want {
			t.Errorf("LogLevel(%q).Level() = %v, want %v", string(level), got, want)
		}
	}
}
