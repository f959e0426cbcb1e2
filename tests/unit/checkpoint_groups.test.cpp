// Which layers of a stage are checkpointed together.
#include <vector>

#include <doctest/doctest.h>

#include <smp/pipeline/checkpoint_groups.hpp>

namespace {

using smp::CheckpointGroups, smp::ConfigError, smp::group_layers, smp::LayerGroup;
using Groups = std::vector<LayerGroup>;

TEST_CASE("the strategies of the reference, for the layers a, b on one stage and c, d, e on the next") {
  const auto of = [](const char* name, int first, int last) {
    return group_layers({first, last}, CheckpointGroups::named(name));
  };
  CHECK(of("none", 0, 2) == Groups{{{0, 2}, false}});
  CHECK(of("each", 0, 2) == Groups{{{0, 1}, true}, {{1, 2}, true}});
  CHECK(of("contiguous", 0, 2) == Groups{{{0, 2}, true}});
  CHECK(of("contiguous", 2, 5) == Groups{{{2, 5}, true}});
  CHECK(of("group_3", 0, 2) == Groups{{{0, 2}, true}});
  CHECK(of("group_3", 2, 5) == Groups{{{2, 5}, true}});
  CHECK(of("group_2", 2, 5) == Groups{{{2, 4}, true}, {{4, 5}, true}});
}

TEST_CASE("layers outside of those that are named keep their activations") {
  CheckpointGroups groups = CheckpointGroups::named("group_2");
  groups.layers = {3, 6};
  CHECK(group_layers({0, 3}, groups) == Groups{{{0, 3}, false}});
  CHECK(group_layers({0, 8}, groups) == Groups{{{0, 3}, false}, {{3, 5}, true}, {{5, 6}, true}, {{6, 8}, false}});
  CHECK(group_layers({6, 8}, groups) == Groups{{{6, 8}, false}});
  CHECK(group_layers({4, 5}, groups) == Groups{{{4, 5}, true}});
}

TEST_CASE("what is checkpointed as a whole is a group of its own on the stage that has all of it, and else as others") {
  CheckpointGroups groups = CheckpointGroups::named("group_2");
  groups.same_randomness = false;
  const std::vector<smp::CheckpointedTree> trees = {{"h", {2, 5}}, {"g", {5, 6}}};
  CHECK(group_layers({0, 8}, groups, trees) ==
        Groups{{{0, 2}, true, false}, {{2, 5}, true, true}, {{5, 6}, true, true}, {{6, 8}, true, false}});
  CHECK(group_layers({1, 4}, groups, trees) == Groups{{{1, 3}, true, false}, {{3, 4}, true, false}});
  CHECK(group_layers({4, 6}, groups, trees) == Groups{{{4, 5}, true, false}, {{5, 6}, true, true}});
  CHECK(group_layers({0, 8}, {}, trees) == Groups{{{0, 2}, false}, {{2, 5}, true}, {{5, 6}, true}, {{6, 8}, false}});
  CHECK(group_layers({2, 5}, {}, trees) == Groups{{{2, 5}, true}});
  CHECK(group_layers({0, 2}, {}, trees) == Groups{{{0, 2}, false}});
  CHECK(group_layers({}, groups, trees).empty());
  groups.layers = {1, 3};  // of these, one is left
  CHECK(group_layers({0, 5}, groups, trees) == Groups{{{0, 1}, false}, {{1, 2}, true, false}, {{2, 5}, true}});
}

TEST_CASE("a word that is no strategy is refused") {
  for (const char* word : {"", "all", "group", "group_", "group_0", "group_-1", "group_2x", "Each"}) {
    CAPTURE(word);
    CHECK_THROWS_AS((void)CheckpointGroups::named(word), ConfigError);
  }
}

}  // namespace
