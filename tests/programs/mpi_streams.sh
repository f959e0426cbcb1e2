# SPDX-License-Identifier: Apache-2.0
# needs: mpi
# Two groups communicate at the same time in streams with workers, over an MPI that may be called from any thread.
for ranks in 1 2 4; do timeout 100 $MPIEXEC $ranks "$PROGRAMS/mpi_streams"; done
