#!/usr/bin/env bash
# Measures on a machine with Docker: the dagger CLI starts an engine of its own version
# there, in a container, and keeps it and its cache for the next run.
#
#   docs/ci/docker-host.sh EXPERIMENT [FLAGS of speedmatrix run]
#
# With GPU=1 that engine gets the GPUs of this machine.
set -euo pipefail

need() { command -v "$1" >/dev/null || { echo "$1 is not on the PATH: $2" >&2; exit 2; }; }
need docker 'install Docker, or name an engine that runs in _EXPERIMENTAL_DAGGER_RUNNER_HOST'
need dagger 'install the dagger CLI, version 0.21.9'
need speedmatrix 'CGO_ENABLED=0 go build, and put it on the PATH'

if [ "${GPU:-}" = 1 ]; then
	export _EXPERIMENTAL_DAGGER_GPU_SUPPORT=1
fi
speedmatrix doctor
exec speedmatrix run "$@"
