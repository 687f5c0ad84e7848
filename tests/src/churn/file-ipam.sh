#!/bin/sh
# An IPAM plugin with five addresses for each node, one after the other: a file for each, with the container's id in it.
conf=$(tr -d ' \t\n')
field() { printf %s "$conf" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }
fail() { printf '{"cniVersion": "1.0.0", "code": %s, "msg": "%s"}\n' "$1" "$2"; exit 1; }
net=$(field first)
dir=$(field leases)
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.0.0", "supportedVersions": ["0.4.0", "1.0.0", "1.1.0"]}' ;;
ADD)
    mkdir -p "$dir" || fail 100 "cannot make $dir"
    last=$(cat "$dir/last" 2> /dev/null)
    for next in 1 2 3 4 5; do
        host=$(((${last:-1} - 2 + next + 5) % 5 + 2))
        if (set -C; printf '%s\n%s' "$CNI_CONTAINERID" "$CNI_IFNAME" > "$dir/$net.$host") 2> /dev/null; then
            echo "$host" > "$dir/last"
            echo "{\"cniVersion\": \"1.0.0\", \"ips\": [{\"address\": \"$net.$host/29\", \"gateway\": \"$net.1\"}]}"
            exit 0
        fi
    done
    fail 11 "no address is free in $net.0/29"
    ;;
DEL)
    for lease in "$dir/$net".*; do
        if [ "$(head -n 1 "$lease" 2> /dev/null)" = "$CNI_CONTAINERID" ]; then rm -f "$lease"; fi
    done
    ;;
CHECK) grep -qsx "$CNI_CONTAINERID" "$dir/$net".* || fail 101 "$CNI_CONTAINERID has no address" ;;
esac
