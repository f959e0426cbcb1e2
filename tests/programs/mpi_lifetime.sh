# SPDX-License-Identifier: Apache-2.0
# needs: mpi
# Communicators in static storage, and others that outlive MPI_Finalize: elsewhere they crashed the program at its end.
for case in static_storage outlives host_began handles wrong_time; do
  echo "== $case"
  timeout 60 $MPIEXEC 2 "$PROGRAMS/mpi_lifetime" "$case"
done
