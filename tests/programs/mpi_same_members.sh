# SPDX-License-Identifier: Apache-2.0
# needs: mpi
# A rank is missing in a group although it is inside of another one that has the same members: both are named.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
timeout 30 $MPIEXEC 2 "$PROGRAMS/mpi_same_members" >"$work/out" 2>&1 || status=$?
cat "$work/out"
((status != 0 && status != 124))
# The first of the two to notice may end the job before the other one speaks.
grep -qE 'smp: barrier at mpi_same_members.cpp:[0-9]+ on (OUTER|INNER) group \(world ranks 0,1\), rank [01]: waited 1000 ms; missing: world rank [01] is in another operation \(barrier\); ending the job' "$work/out"
if grep -q 'missing: nobody' "$work/out"; then exit 1; fi
