# shellcheck shell=bash
# What the scripts of this folder share: messages, checks of the machine, and
# virtual environments with pinned packages. To be sourced.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
cache=$root/.cache/engines

die() {
	printf '%s: %s\n' "$(basename "$0")" "$*" >&2
	exit 1
}

# need COMMAND PACKAGE makes sure that a command is there; on Debian, root gets
# the package that has it.
need() {
	command -v "$1" >/dev/null || apt_install "$2"
	command -v "$1" >/dev/null || die "the command $1 is missing: install it (Debian: apt install $2)"
}

apt_install() {
	[[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 0
	echo "installing $* with apt-get" >&2
	{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@"; } >&2 ||
		die "apt-get could not install $*: see above"
}

# need_avx2: the wheels of both engines hold AVX2 code and die of an illegal
# instruction without it.
need_avx2() {
	[[ $(uname -sm) == "Linux x86_64" ]] || die "there are wheels for Linux on x86-64 only; this is $(uname -sm)"
	grep -qw avx2 /proc/cpuinfo || die "this CPU has no AVX2, and the engines' wheels need it"
}

# need_space GIB: room for the cache, on its own file system.
need_space() {
	local free
	mkdir -p "$cache"
	free=$(($(df -Pk "$cache" | awk 'NR==2 {print $4}') / 1024 / 1024))
	((free >= $1)) || die "$cache needs $1 GiB of free disk space, but has $free"
}

# need_python LOWEST HIGHEST finds a Python 3 whose minor version is in the
# range and that can make virtual environments, and sets $python. The variable
# PYTHON chooses another than python3.
need_python() {
	local minor
	python=${PYTHON:-python3}
	[[ -n ${PYTHON:-} ]] || need python3 python3-venv
	minor=$("$python" -c 'import sys; print(sys.version_info.minor if sys.version_info.major == 3 else -1)') ||
		die "PYTHON=$python does not run"
	((minor >= $1 && minor <= $2)) ||
		die "$("$python" --version) does not fit: want 3.$1 to 3.$2; set PYTHON to one"
	"$python" -c 'import ensurepip, venv' 2>/dev/null || apt_install python3-venv
	"$python" -c 'import ensurepip, venv' 2>/dev/null ||
		die "$python cannot make virtual environments: install its venv module (Debian: apt install python3-venv)"
}

# make_venv NAME [STEP [FILE ...]] makes $cache/NAME with the packages of
# requirements/NAME.txt, unless it is there with these very versions. STEP is a
# function for what else is to be done before it counts as complete, and FILE
# what it depends on. The lock keeps two runs from installing into one folder.
make_venv() {
	local name=$1 step=${2:-true} dir=$cache/$1 stamp lock
	local -a sources=("requirements/$1.txt" "${@:3}")
	# A virtual environment cannot be moved, nor outlive its interpreter.
	stamp="$dir with $("$python" --version)
$(cd "$here" && sha256sum "${sources[@]}")
$(grep -v '^#' "$here/requirements/$name.txt")"
	mkdir -p "$cache"
	exec {lock}>"$cache/$name.lock"
	flock "$lock"
	if [[ ! -x $dir/bin/python || ! -f $dir/stamp || $(<"$dir/stamp") != "$stamp" ]]; then
		echo "installing $name into $dir" >&2
		rm -rf "$dir"
		if ! {
			"$python" -m venv "$dir" &&
				"$dir/bin/pip" install --disable-pip-version-check --no-deps -r "$here/requirements/$name.txt" &&
				"$step" "$dir"
		} >"$cache/$name.log" 2>&1; then
			tail -n 20 "$cache/$name.log" >&2
			die "installing $name failed; the whole log is $cache/$name.log"
		fi
		printf '%s\n' "$stamp" >"$dir/stamp"
	fi
	exec {lock}>&-
}
