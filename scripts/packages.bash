# For the scripts of this folder: source it, then call install_missing.

# install_missing PACKAGE...: installs those of the Debian packages that are not there yet
install_missing() {
  if ! command -v dpkg-query >/dev/null; then
    echo "== not a Debian: these packages or their like must be there: $*"
    return 0
  fi
  local missing=() package
  for package in "$@"; do
    [[ $(dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || missing+=("$package")
  done
  ((${#missing[@]} > 0)) || return 0
  echo "== installing: ${missing[*]}"
  local as_root=()
  ((EUID == 0)) || as_root=(sudo)
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
