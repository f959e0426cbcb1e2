// SPDX-License-Identifier: Apache-2.0
#pragma once

int version_seen_elsewhere();
