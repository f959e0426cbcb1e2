# needs: mpi
# The example for MPI codes, alone and with others, an odd number included.
for ranks in 1 2 3 4; do
  output=$($MPIEXEC $ranks "$EXAMPLES/embed_in_mpi_code")
  grep -q "^embed_in_mpi_code: OK, heat 1000.000000 on $ranks ranks$" <<<"$output" || { echo "$output"; exit 1; }
done
