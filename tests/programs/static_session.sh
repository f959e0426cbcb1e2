# needs: mpi
# Objects that outlive main and MPI: exit status 0, and nothing on the error stream.
for ranks in 1 2; do
  errors=$( { $MPIEXEC $ranks "$PROGRAMS/static_session" | grep -c "static_session: $ranks ranks" | grep -qx "$ranks"; } 2>&1)
  [[ -z $errors ]] || { echo "$errors"; exit 1; }
done
