# Sourced by the scripts beside it, at the repository's root: makes .venv with exactly the versions of a lock, and has
# the programs that Python's packages do not bring.
# shellcheck shell=bash

say() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

python_fits() { # 3.11 is what streamd needs; beyond 3.13 TensorFlow has no wheels
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

find_python() {
    local python
    if [[ -n "${STREAMD_PYTHON:-}" ]]; then
        python_fits "$STREAMD_PYTHON" || fail "STREAMD_PYTHON=$STREAMD_PYTHON is no Python 3.11, 3.12 or 3.13 with venv"
        echo "$STREAMD_PYTHON"
        return
    fi
    for python in python3.13 python3.12 python3.11 python3; do
        if python_fits "$python"; then
            command -v "$python"
            return
        fi
    done
    fail "no Python 3.11, 3.12 or 3.13 with venv found: install one (Debian, Ubuntu: apt install python3 python3-venv;" \
        "Fedora: dnf install python3.13), or set STREAMD_PYTHON to its path"
}

version_of() { "$1" -c 'import sys; print(*sys.version_info[:3], sep=".")' 2>/dev/null; }

venv_fits() { # of the wanted version, and not moved here from elsewhere: its commands name the place they were made for
    local wanted=${STREAMD_PYTHON:-.venv/bin/python}
    python_fits .venv/bin/python &&
        [[ "$(version_of .venv/bin/python)" == "$(version_of "$wanted")" ]] &&
        grep --quiet --fixed-strings "$(pwd -P)/.venv/" .venv/bin/pip 2>/dev/null
}

make_venv() {
    local python
    venv_fits && return
    python=$(find_python)
    say "making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv
}

remove_former_distribution() { # streamd-loader was called streamd: two distributions would own the same commands
    compgen -G ".venv/lib/python*/site-packages/streamd-[0-9]*.dist-info" >/dev/null || return 0
    say "removing streamd as it was installed under its former name"
    .venv/bin/python -m pip uninstall --quiet --disable-pip-version-check --yes streamd
}

set_up() { # name of a lock in requirements/
    local lock="requirements/$1.txt" stamp=".venv/streamd-$1.lock" digest
    make_venv
    # The last two belong to the digest because the install writes the commands, and the schema, that they name.
    digest=$(cat "$lock" pyproject.toml setup.py | sha256sum)
    [[ "$(cat "$stamp" 2>/dev/null)" == "$digest" ]] && return
    say "installing $lock into .venv (a few minutes and 2.5 GB the first time)"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock"
    remove_former_distribution
    say "installing streamd itself, editable"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --no-index -e .
    echo "$digest" >"$stamp"
}

as_root() {
    if ((EUID == 0)); then "$@"; else sudo --non-interactive "$@"; fi
}

apt_get() { # who runs it, and its arguments; the lists are fetched only when those that are there do not do
    local -a command=("$1" env DEBIAN_FRONTEND=noninteractive apt-get --quiet --quiet -o DPkg::Lock::Timeout=60)
    shift
    "${command[@]}" "$@" || { as_root apt-get --quiet --quiet update && "${command[@]}" "$@"; }
}

need_lock() { # a lock in requirements/ that goes into .venv beside that of the tests, for the one part that wants it
    local lock="requirements/$1.txt" stamp=".venv/streamd-$1.lock"
    [[ "$(cat "$stamp" 2>/dev/null)" == "$(sha256sum <"$lock")" ]] && return
    say "installing $lock into .venv"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock"
    sha256sum <"$lock" >"$stamp"
}

need_ray() { need_lock ray; } # 80 MB

need_sphinx() { need_lock site; } # 60 MB

CHROMIUMS="chromium chromium-browser google-chrome google-chrome-stable"

need_chromium() {
    # shellcheck disable=SC2086 # the names are words
    [[ -n $(type -p $CHROMIUMS) ]] && return
    type apt-get &>/dev/null || fail "there is no Chromium: install one; it may be called any of: $CHROMIUMS"
    as_root true 2>/dev/null ||
        fail "there is no Chromium; type: sudo apt-get install --no-install-recommends chromium"
    say "installing chromium"
    apt_get as_root install --yes --no-install-recommends chromium >/dev/null ||
        fail "Chromium was not installed; apt-get says why above. Any that is called one of these will do: $CHROMIUMS"
}

need_site() { need_sphinx && need_chromium; } # to build the pages, and to search in them

need_pictures() { # of other makers: nothing is installed, the pictures are taken out of two of Debian's packages
    local folder
    [[ -d .venv/pictures ]] && return
    type apt-get dpkg-deb &>/dev/null || fail "there are no apt-get and dpkg-deb, which bring the pictures of other makers"
    say "unpacking the pictures of golang-golang-x-image-dev and golang-1.19-src into .venv/pictures"
    folder=$(mktemp -d)
    (cd "$folder" && apt_get env download -o APT::Sandbox::User=root golang-golang-x-image-dev golang-1.19-src &&
        for package in *.deb; do dpkg-deb --extract "$package" . || exit 1; done &&
        mkdir pictures pictures/go && mv usr/share/gocode/src/golang.org/x/image pictures/x-image &&
        mv usr/share/go-1.19/src/image pictures/go/) && mv "$folder/pictures" .venv/ || {
        rm -r "$folder"
        fail "the pictures were not unpacked; apt-get says why above. Both packages are those of Debian 12"
    }
    rm -r "$folder"
}

# Debian's packages would start a server, now and at each boot: their programs are taken, and nothing is installed.
unpack_programs() { # the package, the folder in it, the programs
    local package=$1 within=$2 folder
    shift 2
    (PATH=$PWD/.venv/bin:$PATH && type "$@" &>/dev/null) && return
    type apt-get dpkg-deb &>/dev/null || fail "$package is not there: put its programs into $PWD/.venv/bin: $*"
    say "unpacking $* into .venv/bin"
    folder=$(mktemp -d)
    (cd "$folder" && apt_get env download -o APT::Sandbox::User=root "$package" && dpkg-deb --extract "$package"_*.deb .) &&
        (cd "$folder/$within" && mv "$@" "$OLDPWD/.venv/bin/") || {
        rm -r "$folder"
        fail "$package was not unpacked; apt-get says why above. Put its programs into $PWD/.venv/bin: $*"
    }
    rm -r "$folder"
}

need_prometheus() { unpack_programs prometheus usr/bin prometheus promtool; }

need_nginx() { unpack_programs nginx usr/sbin nginx; }
