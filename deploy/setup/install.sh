#!/bin/sh
# Installs what Weir needs on Debian, Ubuntu and macOS: 'install.sh run' for
# 'make up', 'install.sh test' for 'make test'. It installs only what is
# missing, says what it does, and is safe to run again.
set -eu

what=${1:-run}
say() { printf 'setup: %s\n' "$*"; }
have() { command -v "$1" >/dev/null 2>&1; }

need_go() {
	have go && go version >/dev/null 2>&1 && return 0
	say 'Go is missing. Install Go 1.26 or newer from your package manager or go.dev, then run this again.'
	exit 1
}

as_root() {
	if [ "$(id -u)" -eq 0 ]; then "$@"; else
		have sudo || { say "cannot run '$*': not root and no sudo"; exit 1; }
		sudo "$@"
	fi
}

postgres_there() {
	for dir in /usr/lib/postgresql/*/bin /usr/local/pgsql/bin /opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin; do
		[ -x "$dir/initdb" ] && [ -x "$dir/postgres" ] && return 0
	done
	have initdb && have postgres
}

library_there() { ldconfig -p 2>/dev/null | grep -q "$1"; }

debian() {
	missing=''
	postgres_there || missing="$missing postgresql"
	library_there libffi.so.8 || missing="$missing libffi8"
	library_there libstdc++.so.6 || missing="$missing libstdc++6"
	have cc || missing="$missing gcc libc6-dev"
	have npm || missing="$missing nodejs npm"
	if [ "$what" = test ]; then
		have git || missing="$missing git"
		have tc || missing="$missing iproute2"
	fi
	[ -z "$missing" ] && return 0
	say "installing$missing"
	as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
	# shellcheck disable=SC2086 # a list of packages
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
}

macos() {
	have brew || { say 'Homebrew is missing: see brew.sh'; exit 1; }
	postgres_there || brew install postgresql@17
	have npm || brew install node
}

need_go
case $(uname -s) in
Linux)
	if have apt-get; then debian; else
		say 'no apt-get here: install PostgreSQL 15 or newer, libffi 3.4 (libffi.so.8), gcc and npm yourself'
	fi ;;
Darwin) macos ;;
*) say "no recipe for $(uname -s): install PostgreSQL, libffi and npm yourself" ;;
esac
