#!/usr/bin/env bash
# A Ceph on this machine, to try ckptfs with its radosgw by hand. See usage() below.
set -euo pipefail

usage() {
  cat <<'END'
Usage: tests/remote/ceph.sh start FOLDER | stop FOLDER | --help

start: a monitor, one OSD that keeps all in memory, and a radosgw, with all their files in FOLDER, which must not be
there. Makes a user and the bucket "bucket", and prints what to type next. stop: ends them.

It needs Debian's packages ceph-mon, ceph-osd and radosgw, and 1 GiB of memory. CEPH_ROOT: where they were unpacked
(dpkg -x), if they are not installed. Tried with 16.2.15, from Debian 12.

Example:
  tests/remote/ceph.sh start /tmp/ceph
END
}

readonly monitor=127.0.0.1:17789 gateway=127.0.0.1:17480
readonly root=${CEPH_ROOT:-}
readonly libraries=$root/usr/lib/x86_64-linux-gnu
if [[ $root ]]; then
  export PATH=$root/usr/bin:$PATH LD_LIBRARY_PATH=$libraries:$libraries/ceph
  export PYTHONPATH=$root/usr/lib/python3/dist-packages
fi

write_settings() {
  cat >ceph.conf <<END
[global]
fsid = $1
mon host = v1:$monitor
mon data = $PWD/mon
osd data = $PWD/osd
rgw data = $PWD/rgw
run dir = $PWD
log file = $PWD/\$name.log
admin socket = $PWD/\$name.\$pid.asok
pid file = $PWD/\$name.pid
keyring = $PWD/keyring
public addr = 127.0.0.1
cluster addr = 127.0.0.1
osd objectstore = memstore
memstore device bytes = 4294967296
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd crush chooseleaf type = 0
mon allow pool size one = true
osd class dir = $libraries/rados-classes
plugin dir = $libraries/ceph
erasure code dir = $libraries/ceph/erasure-code
rgw frontends = beast endpoint=$gateway
END
}

# Without a key of its own radosgw hangs, and says nothing.
make_keys() {
  ceph-authtool --create-keyring keyring --gen-key -n mon. --cap mon 'allow *'
  ceph-authtool keyring --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
  ceph-authtool keyring --gen-key -n client.rgw --cap mon 'allow rw' --cap osd 'allow rwx'
}

start_cluster() {
  local id osd
  id=$(cat /proc/sys/kernel/random/uuid)
  osd=$(cat /proc/sys/kernel/random/uuid)
  mkdir -p mon osd rgw
  write_settings "$id"
  export CEPH_CONF=$PWD/ceph.conf
  make_keys
  monmaptool --create --addv a "[v1:$monitor]" --fsid "$id" monmap
  ceph-mon --mkfs -i a --monmap monmap --keyring keyring
  ceph-mon -i a
  ceph --connect-timeout 30 osd new "$osd" 0
  ceph-authtool keyring --gen-key -n osd.0 --cap mon 'allow profile osd' --cap osd 'allow *'
  ceph --connect-timeout 30 auth add osd.0 -i keyring
  ceph-osd -i 0 --mkfs --osd-uuid "$osd"
  ceph-osd -i 0
  ceph --connect-timeout 30 osd crush add osd.0 1 root=default host=here
  radosgw -n client.rgw
  local tries=0
  until curl -s -o reply "http://$gateway"; do
    ((++tries < 60)) || { echo "ceph.sh: radosgw does not answer; its log: $PWD/client.rgw.log" >&2; exit 1; }
    sleep 1
  done
}

make_bucket() {
  radosgw-admin -n client.admin user create --uid=ckptfs --display-name=ckptfs >user.json
  local key secret nothing
  key=$(sed -n 's/.*"access_key": "\(.*\)".*/\1/p' user.json)
  secret=$(sed -n 's/.*"secret_key": "\(.*\)".*/\1/p' user.json)
  nothing=$(printf '' | sha256sum | cut -d' ' -f1)
  printf 'user = "%s:%s"\n' "$key" "$secret" |
    curl -K - -s -f -X PUT --aws-sigv4 aws:amz:us-east-1:s3 -H "x-amz-content-sha256: $nothing" "http://$gateway/bucket"
  printf '[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n' "$key" "$secret" >credentials
}

start() {
  umask 077
  mkdir "$1"
  cd "$1"
  start_cluster >start.log 2>&1 || { tail -n 20 start.log >&2; exit 1; }
  make_bucket
  printf '  export AWS_SHARED_CREDENTIALS_FILE=%s\n' "$PWD/credentials"
  printf '  ckptfs remote check s3://bucket/run7 --endpoint http://%s\n' "$gateway"
}

stop() {
  local name
  for name in client.rgw osd.0 mon.a; do
    [[ -e $1/$name.pid ]] || continue
    kill "$(cat "$1/$name.pid")" || echo "$name had ended by itself; see $1/start.log" >&2
  done
}

case ${1:-}/$# in
  start/2) start "$2" ;;
  stop/2) stop "$2" ;;
  --help/1 | -h/1) usage ;;
  *) usage >&2; exit 2 ;;
esac
