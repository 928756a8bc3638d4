#!/bin/bash
# A SLURM cluster of two nodes on this machine, for a job of r3l: slurm_cluster.sh RUN [OPTION …]
# Needs root and Debian's packages: apt-get install slurm-wlm munge
# Both nodes are this machine under its two names; what it starts ends with it.
set -eu
run=$1; shift
base=$(mktemp -d) host=$(hostname -s)
mkdir -p "$base/state" /run/munge
chown munge: /run/munge
cat >"$base/slurm.conf" <<CONF
ClusterName=r3l
SlurmctldHost=$host
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
SlurmctldPidFile=$base/ctld.pid
SlurmdPidFile=$base/d-%n.pid
StateSaveLocation=$base/state
SlurmdSpoolDir=$base/d-%n
SlurmctldLogFile=$base/ctld.log
SlurmdLogFile=$base/d-%n.log
NodeName=$host,localhost NodeHostname=$host NodeAddr=127.0.0.1 Port=[17001-17002] CPUs=$(nproc)
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
export SLURM_CONF=$base/slurm.conf
started=()
trap 'kill "${started[@]}" 2>/dev/null; wait; rm -rf "$base"' EXIT
runuser -u munge -- munged --foreground --pid-file=/run/munge/r3l.pid & started+=($!)
sleep 1
slurmctld -D & started+=($!)
for node in "$host" localhost; do mkdir -p "$base/d-$node"; slurmd -D -N "$node" & started+=($!); done
for _ in $(seq 30); do sinfo -h -o %T 2>/dev/null | grep -q idle && break; sleep 1; done
sinfo
.venv/bin/r3l-launch --cluster slurm --hardware "2x$(nproc)cpu" --run "$run" "$@"
code=0
sbatch --wait "$run/job.sbatch" || code=$?
cat "$run"/logs/slurm-*.log
exit "$code"
