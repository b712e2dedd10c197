#!/bin/sh
# Repeats the study: docs/study/repeat.sh HOLDFAST MODEL.gguf OUT
# Some minutes on two cores with a model of a few million weights.  OUT then has what this directory has.
set -eu
holdfast=$1 model=$2 out=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out/logs"

# a fresh server for every cell: 8 sequences, then 5 kinds of interlopers, in 7 configurations
"$holdfast" experiment -m "$model" -o "$work/matrix" >/dev/null
"$holdfast" experiment -m "$model" -o "$work/cascade" --cascade --interlopers 0,1,3,32,500 --rounds 4 >/dev/null

for part in matrix cascade; do
    mkdir -p "$out/$part"
    cp "$work/$part/report.md" "$work/$part/report.html" "$work/$part/report.json" "$out/$part/"
done

# what the imitated engine printed, without the lines that name this machine's files
for cell in ac.pxa ac.pxa-policy0 ac.pxa-end ac.pxa-both abc.pxa abc.pxa-policy0 abc.pxa-end abc.pxa-both; do
    grep -v '^[0-9.]* [EWID] ' "$work/matrix/$cell/server.log" >"$out/logs/$cell.log"
done
for n in 0 1 3 32 500; do
    grep -v '^[0-9.]* [EWID] ' "$work/cascade/cascade-$n.pxa/server.log" >"$out/logs/cascade-$n.pxa.log"
done
cd "$out/logs"
"$holdfast" forensics --html ../forensics.html --md ../forensics.md cascade-0.pxa.log cascade-1.pxa.log cascade-3.pxa.log \
    cascade-32.pxa.log cascade-500.pxa.log >/dev/null
