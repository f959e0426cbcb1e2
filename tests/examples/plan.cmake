# The program examples/plan, judged from outside: cmake -DPROGRAM=<path> -P plan.cmake

# prints(<text> <arguments>...): exit code 0, exactly this on stdout, nothing on stderr
function(prints text)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT code STREQUAL "0" OR NOT out STREQUAL text OR NOT err STREQUAL "")
    message(SEND_ERROR "plan ${ARGN}: expected\n${text}\nfound ${code}\n${out}\n${err}")
  endif()
endfunction()

# has(<line> <arguments>...): exit code 0, and this line on stdout
function(has line)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
  string(FIND "\n${out}" "\n${line}\n" place)
  if(NOT code STREQUAL "0" OR place EQUAL -1)
    message(SEND_ERROR "plan ${ARGN}: expected the line\n${line}\nfound ${code}\n${out}\n${err}")
  endif()
endfunction()

# fails(<sentence> <arguments>...): exit code 2, nothing on stdout, exactly this line on stderr
function(fails sentence)
  execute_process(COMMAND "${PROGRAM}" ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT code STREQUAL "2" OR NOT out STREQUAL "" OR NOT err STREQUAL "${sentence}\n")
    message(SEND_ERROR "plan ${ARGN}: expected exit code 2 and\n${sentence}\nfound ${code}\n${out}\n${err}")
  endif()
endfunction()

# GPT-2 in single precision: 124,439,808 parameters; all bytes once for values and gradients, twice for AdamW.
prints("strategy\tDataParallel
memory\tparameter\t497759232
memory\tgradient\t497759232
memory\toptimizer\t995518464
memory\tbuffer\t0
memory\tall\t1991036928
model\tparameters\t124439808
job\tsamples_in_a_step\t1
")

# GPT-NeoX-20B on 64 GPUs of which 32 share it: a layer has 12 * 6144^2 = 452,984,832 elements that are sharded and 13 * 6144
# that are not; embedding and head 50432 * 6144 each. Shards: 44 * 14,155,776 + 2 * 9,682,944 = 642,220,032 elements, whole
# on all ranks 44 * 79,872 + 2 * 6144 = 3,526,656; 2, 4 and 3 * 4 bytes of each. Of 10^9 elements two layers are live: the
# embedding is gathered twice, the head and the last layer, which stays, once, 43 layers twice; a rank sends 31 shards of 2
# bytes. Each gradient is reduced once, 31 shards of 4 bytes; then two replicas sum theirs.
prints("strategy\tSharded
gathers\tin_a_step\t90
gathers\tpeak_bytes\t1811939328
gathers\tneeded_bytes\t905969664
buffer\tgathered\t1811939328
buffer\tgradients\t4000000000
buffer\tmessages\t0
memory\tparameter\t1291493376
memory\tgradient\t2582986752
memory\toptimizer\t7748960256
memory\tbuffer\t5811939328
memory\tall\t17435379712
sent\tSHARD\tall_gather\t90\t78157283328
sent\tSHARD\treduce_scatter\t46\t79635283968
sent\tREPLICA\tall_reduce\t2\t2568880128
sent\tRDP\tall_reduce\t1\t27772416
model\tparameters\t20554567680
job\tsamples_in_a_step\t768
" --preset gpt-neox-20b-8-nodes)

# The same on 16 GPUs that share it: no replicas; shards twice as large.
has("job\tsamples_in_a_step\t64" --preset gpt-neox-20b-2-nodes)
has("memory\tparameter\t2575933440" --preset gpt-neox-20b-2-nodes)
# 15 (3 * 19,365,888 + 87 * 28,311,552) * 2
has("sent\tSHARD\tall_gather\t90\t75636080640" --preset gpt-neox-20b-2-nodes)
# One layer live: 46 units forward, all but the last again; everything live: each once.
has("gathers\tin_a_step\t91" --preset gpt-neox-20b-2-nodes --max-live 0)
has("gathers\tpeak_bytes\t905969664" --preset gpt-neox-20b-2-nodes --max-live 0)
has("gathers\tin_a_step\t4" --preset gpt-neox-20b-2-nodes --layers 2 --max-live 2147483647 --microbatches 3)
# 65 billion parameters on 512 GPUs, 8 of which share each layer: 80 * 4 all-reduces of a hidden state of 8 * 2048 * 8192
# elements, two more for embedding and head, two for the loss.
has("model\tparameters\t65259323392" --preset gpt-neox-65b-2048)
has("job\tsamples_in_a_step\t512" --preset gpt-neox-65b-2048)
has("sent\tTP\tall_reduce\t324\t151263551488" --preset gpt-neox-65b-2048)
has("job\tsamples_in_a_step\t512" --preset gpt-neox-65b-4096)

# The optimizer of 4 ranks: 124439808 / 4 elements.
has("memory\toptimizer\t248879616" --world 4 --shard-optimizer 1)
has("sent\tRDP\treduce_scatter\t17\t373319424" --world 4 --shard-optimizer 1)

fails("smp: --shard-optimizer 1 with --sdp 4: Sharded cuts the optimizer state already; leave one of them out"
      --world 4 --sdp 4 --shard-optimizer 1)
fails("smp: sdp is 3, but must divide the reduced data-parallel degree rdp = world / (pp * tp) = 8 / 1 = 8; legal values are 1, 2, 4, 8"
      --world 8 --sdp 3)
fails("smp: tp is 8, but must divide heads = 12" --world 8 --tp 8)
fails("smp: heads is 7, but must divide hidden = 768" --heads 7)
fails("smp: layers is 0, but must be at least 1" --layers 0)
fails("smp: max-live is -1, but must be at least 0" --world 2 --sdp 2 --max-live -1)
fails("smp: optimizer-states is -1, but must be at least 0" --optimizer-states -1)
fails("smp: dtype-bytes is 3, but must be 2, 4 or 8" --dtype-bytes 3)
fails("smp: layers is 2000000, but must be at most 10000" --layers 2000000)
fails("smp: tp is 2, but must divide seq = 15" --world 2 --tp 2 --tp-layout memory --seq 15)
fails("smp: rank is 8, but must be 0 to 7" --world 8 --rank 8)
fails("smp: no preset is called 'gpt-4'; there are gpt-neox-20b-2-nodes, gpt-neox-20b-8-nodes, gpt-neox-65b-2048, gpt-neox-65b-4096"
      --preset gpt-4)
fails("--seq: \"2k\" is not a decimal 32-bit integer" --seq 2k)
