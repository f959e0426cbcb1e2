# SPDX-License-Identifier: Apache-2.0
# needs: blas
# An OpenBLAS that runs kernels of a processor of 2004 is named once, with the remedy; one that does not is not.
cd "$(mktemp -d)"
code=0
kernel=$(OPENBLAS_CORETYPE=Prescott "$PROGRAMS/slow_openblas" 2>warning.txt) || code=$?
((code != 77)) || exit 77
((code == 0))
if [[ $kernel != "OpenBLAS (Prescott)" ]] || ! grep -q avx2 /proc/cpuinfo; then
  echo "nothing to warn of: $kernel"
  exit 77
fi
cat warning.txt
[[ $(wc -l <warning.txt) == 1 ]]
remedy=$(grep -o 'set OPENBLAS_CORETYPE=[A-Za-z]* in the environment$' warning.txt | sed 's/.*=\([A-Za-z]*\) .*/\1/')
[[ -n $remedy ]]
OPENBLAS_CORETYPE=$remedy "$PROGRAMS/slow_openblas" 2>quiet.txt
[[ ! -s quiet.txt ]]
