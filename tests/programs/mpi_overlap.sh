# SPDX-License-Identifier: Apache-2.0
# needs: mpi
# Gradients that are reduced while backward goes on, over an MPI that may be called from any thread: the same bits as
# without, and as thread ranks get.
for ranks in 1 2 4; do timeout 100 $MPIEXEC $ranks "$PROGRAMS/mpi_overlap"; done
