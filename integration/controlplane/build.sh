#!/bin/sh
# Builds etcd and kube-apiserver, the control plane of the tests and the demo, into bin/controlplane below the
# repository's root. Does nothing when they are up to date. Where KUBEBUILDER_ASSETS names a directory, the binaries
# there are used instead and only looked at.
set -eu

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
root=$(CDPATH= cd -- "$here/../.." && pwd)
out=$root/bin/controlplane
interval=${CONTROLPLANE_PROGRESS_SECONDS:-5}

kubernetes=v1.37.2
version=k8s.io/component-base/version
apiserver_ldflags="-s -w -X $version.gitVersion=$kubernetes -X $version.gitMajor=1 -X $version.gitMinor=37"

fail() {
	echo "controlplane: $*" >&2
	exit 1
}

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
	for name in etcd kube-apiserver; do
		[ -f "$KUBEBUILDER_ASSETS/$name" ] && [ -x "$KUBEBUILDER_ASSETS/$name" ] ||
			fail "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS has no executable $name: put one there, or unset the variable to build it"
	done
	echo "controlplane: using the binaries in $KUBEBUILDER_ASSETS (KUBEBUILDER_ASSETS)"
	exit 0
fi

export CGO_ENABLED=0
stamp=$(cat "$0" "$here"/etcd/go.mod "$here"/etcd/go.sum "$here"/apiserver/go.mod "$here"/apiserver/go.sum |
	{ cat; go env GOOS GOARCH GOVERSION; } | cksum)

if [ -x "$out/etcd" ] && [ -x "$out/kube-apiserver" ] && [ "$(cat "$out/.stamp" 2>/dev/null)" = "$stamp" ]; then
	echo "controlplane: up to date in $out"
	exit 0
fi

mkdir -p "$out"
work=$(mktemp -d "$out/.build.XXXXXX")
pid=
cleanup() {
	[ -z "$pid" ] || kill "$pid" 2>/dev/null || true
	rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# progress prints how far the build of $1 is: $2 packages done of $3, $4 of which were in the build cache before; $5 is
# a remark.
progress() {
	elapsed=$(($(date +%s) - started))
	line="controlplane: $1: $2 of $3 packages ($4 were built before), ${elapsed}s${5:-}"
	if [ -t 1 ]; then
		printf '\r\033[K%s' "$line"
	else
		echo "$line"
	fi
}

# build compiles package $2 of the module in directory $1 into $work/$3 with linker flags $4.
build() {
	started=$(date +%s)
	cd "$here/$1"
	echo "controlplane: $3: resolving modules"
	go list -deps -trimpath -ldflags "$4" -f '{{if .Stale}}{{.StaleReason}}{{else}}built{{end}}' "$2" >"$work/list" ||
		fail "$3: cannot list its packages (see above)"
	total=$(wc -l <"$work/list" | tr -d ' ')
	# A package whose result lies in the build cache is only linked or copied.
	cached=$(grep -c -e '^built$' -e 'available in build cache' "$work/list" || true)

	# With -v go prints a package's name when it begins to compile it.
	go build -v -trimpath -ldflags "$4" -o "$work/$3" "$2" >"$work/log" 2>&1 &
	pid=$!
	ticks=0
	while kill -0 "$pid" 2>/dev/null; do
		if [ $((ticks % interval)) -eq 0 ]; then
			begun=$(grep -c -E '^[^ :#]+$' "$work/log" || true)
			done=$((cached + begun))
			remark=
			[ "$done" -lt "$total" ] || remark=", linking"
			progress "$3" "$done" "$total" "$cached" "$remark"
		fi
		ticks=$((ticks + 1))
		sleep 1
	done
	if ! wait "$pid"; then
		pid=
		[ ! -t 1 ] || echo
		tail -n 30 "$work/log" >&2
		fail "$3: the build failed (see above)"
	fi
	pid=
	progress "$3" "$total" "$total" "$cached"
	[ ! -t 1 ] || echo
	# A rename is atomic: whoever starts the binary sees the whole old or the whole new one.
	mv "$work/$3" "$out/$3"
	cd "$root"
}

echo "controlplane: building etcd and kube-apiserver $kubernetes; several minutes when nothing was built before"
rm -f "$out/.stamp"
build etcd go.etcd.io/etcd/server/v3 etcd "-s -w"
build apiserver k8s.io/kubernetes/cmd/kube-apiserver kube-apiserver "$apiserver_ldflags"
echo "$stamp" >"$work/stamp"
mv "$work/stamp" "$out/.stamp"
echo "controlplane: done, in $out"
